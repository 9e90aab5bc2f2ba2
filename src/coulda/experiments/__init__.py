"""One file per figure of the paper, and the stories that the documentation tells."""
