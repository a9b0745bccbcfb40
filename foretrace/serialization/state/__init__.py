"""What a program goes on from beside its modules, in a file and made anew; see README.md."""
