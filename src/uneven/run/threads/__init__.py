"""Several threads of one worker that train one replica."""
