"""Every published headline that the field repeats, beside what is predicted or measured here."""
