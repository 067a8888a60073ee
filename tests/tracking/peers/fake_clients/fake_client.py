"""Records every call of an attribute, however deep, as one line in the file FAKE_CLIENT_CALLS."""
import os


class Recorder:
    def __init__(self, name):
        self.__dict__["_name"] = name

    def _line(self, text):
        with open(os.environ["FAKE_CLIENT_CALLS"], "a") as file:
            file.write(text + "\n")

    def __getattr__(self, name):
        if name.startswith("__") or name in ("id", "info"):
            raise AttributeError(name)
        return Recorder(f"{self._name}.{name}")

    def __setattr__(self, name, value):
        self._line(f"{self._name}.{name} = {value!r}")

    def __setitem__(self, key, value):
        if key != "FRAMEWORK":
            self._line(f"{self._name}[{key!r}] = {value!r}")

    def __call__(self, *args, **kwargs):
        words = [repr(arg) for arg in args] + [f"{key}={value!r}" for key, value in sorted(kwargs.items())]
        self._line(f"{self._name}({', '.join(words)})")
        return Recorder(f"{self._name}()")
