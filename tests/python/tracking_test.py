"""Tracker: lines of the journal, TensorBoard's files, refusals."""
import glob
import json
import os

import pytest
import torch

import hasten


def journal(tracker):
    with open(os.path.join(tracker.run_folder, "journal.jsonl")) as file:
        return file.read()


def test_values_are_in_the_journal_at_once(tmp_path):
    with hasten.Tracker("csv", tmp_path, project="p", config={"lr": 0.1, "layers": [1, 2]}) as tracker:
        tracker.log({"loss": 0.5, "accuracy": torch.tensor(0.25), "text": "hello", "group": {"a": 1}}, 3)
        tracker.log({"loss": 0.375})
        lines = journal(tracker)
    assert "0.5" in lines and "0.25" in lines and "hello" in lines and "layers" in lines and "0.375" in lines
    for line in lines.splitlines():
        json.loads(line)


def test_a_tracker_shows_what_was_logged(tmp_path):
    tracker = hasten.Tracker(["tensorboard"], tmp_path, project="p")
    for step in range(20):
        tracker.log({"loss": 1.0 / (step + 1)}, step)
    tracker.finish()
    files = glob.glob(str(tmp_path / "**" / "events.out.tfevents.*"), recursive=True)
    assert files
    assert b"loss" in b"".join(open(file, "rb").read() for file in files)


def test_a_value_that_is_no_number_is_refused_with_its_key(tmp_path):
    with hasten.Tracker("csv", tmp_path) as tracker:
        with pytest.raises(hasten.UsageError, match="'weights'"):
            tracker.log({"weights": torch.ones(3)})
        with pytest.raises(hasten.UsageError, match="'thing'"):
            tracker.log({"thing": object()})


def test_a_name_that_is_not_known_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(hasten.UsageError, match="tensorboard"):
        hasten.Tracker("tensorbord", tmp_path)
