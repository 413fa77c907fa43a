"""Launch scripts read as data: words, values and control flow of a shell, and the command that starts the training."""
