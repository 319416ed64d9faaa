"""What the nets make of each kind of hidden state: exact, refused by name, or an error in the step itself."""
