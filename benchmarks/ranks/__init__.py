"""What every rank says where ranks are given bad input, or where one of them fails."""
