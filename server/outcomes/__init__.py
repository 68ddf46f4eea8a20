"""What variants came to online: rates with intervals, differences, and how much more would have to be seen."""
