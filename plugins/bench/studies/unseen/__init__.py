"""Tasks by somebody who had not read those of this project. See README.md."""
