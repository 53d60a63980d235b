"""What passes between the stages: frozen specs and files. Nothing here imports torch."""
