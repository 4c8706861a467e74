"""Read configurations of torchtune."""
