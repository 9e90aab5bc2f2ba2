"""One file a figure of the paper, and the stories that the documentation tells."""
