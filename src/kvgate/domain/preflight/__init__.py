"""What can be seen before the first request: settings as their files give them, and rules about them."""
