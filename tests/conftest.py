import hypothesis

hypothesis.settings.register_profile(
    "departing", deadline=None, max_examples=60, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.load_profile("departing")
