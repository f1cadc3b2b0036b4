"""Training of one replica by several threads of one worker."""
