"""Races: Buttress beside other tools on the same images, in one run."""
