"""What a session looks at and hangs on the user's model, and how it is taken off again."""
