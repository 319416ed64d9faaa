"""What goes wrong with recomputation elsewhere, tried here. README.md says which test covers which hazard."""
