"""What the tests of the grader and those of an assignment share."""

import copy

import nbformat


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def answer(notebook, function):
    """The cell that defines a function."""
    (cell,) = [cell for cell in code(notebook) if f"def {function}(" in cell.source]
    return cell


def insert(notebook, source, before):
    """A cell of code before the one that defines a function."""
    notebook.cells.insert(notebook.cells.index(answer(notebook, before)), nbformat.v4.new_code_cell(source))


def answered(student, solution, functions):
    """A student's notebook with the solution's answers."""
    notebook = copy.deepcopy(student)
    for function in functions:
        answer(notebook, function).source = answer(solution, function).source
    return notebook


def with_points(assignment, *questions):
    """The checks of some questions that carry points."""
    return {check for question in questions for check, points in assignment.points[question].items() if points}


def lost(result, assignment):
    """The checks with points that failed."""
    return {
        check
        for question in assignment.points
        for check in with_points(assignment, question)
        if not result.passed.get(question, {}).get(check)
    }
