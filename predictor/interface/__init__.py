"""What people and other programs call: one file per question, and the interface that estimate-train-time documents."""
