"""What the code that ran may have read, found when the run is over."""
