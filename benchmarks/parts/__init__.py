"""What the commands beside this folder are made of."""
