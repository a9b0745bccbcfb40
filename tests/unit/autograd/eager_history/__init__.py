"""What a forward cut that trains makes of small trees."""
