"""What keeps a repository in order: signing again, checking, cleaning, carrying it elsewhere."""
