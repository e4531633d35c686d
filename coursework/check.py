import otter

grader = otter.Notebook("{{ notebook }}")  # this file must have this name


def check(question, hidden=0):
    """Run the public checks of a question and say how many passed."""
    results = [result for result in grader.check(question).test_case_results if not result.test_case.hidden]
    failed = [result.message.split("\n", 3)[-1] for result in results if not result.passed]
    print(f"{question}: {len(results) - len(failed)} of {len(results)} public checks passed.")
    if failed:
        print("The first that failed says:", failed[0].removeprefix("AssertionError: "))
    print(f"{hidden} hidden checks remain; they call your functions with other inputs.")
