"""An open-loop load generator: requests leave at times fixed beforehand, whatever becomes of those before them."""
