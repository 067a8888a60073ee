// Trackers for Python: values go to the run's journal, which another process follows.
#include "hasten/tracking/run/trackers.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>

#include "hasten/core/error.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

using tracking::Trackers;

tracking::Values values_of(const py::dict& values);

// A number, a text, a group, or whatever has item(), as tensors and numpy's numbers have.
tracking::Value value_of(const std::string& key, py::handle value) {
  if (PyFloat_CheckExact(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  if (PyBool_Check(value.ptr())) return value.cast<bool>();
  if (PyLong_Check(value.ptr())) return value.cast<int64_t>();
  if (PyFloat_Check(value.ptr())) return value.cast<double>();
  if (PyUnicode_Check(value.ptr())) return value.cast<std::string>();
  if (py::isinstance<py::dict>(value)) return values_of(py::reinterpret_borrow<py::dict>(value));
  if (py::hasattr(value, "item") && py::hasattr(value, "numel") && value.attr("numel")().cast<int64_t>() != 1) {
    return tracking::Value::invalid("a tensor of several elements");
  }
  if (!py::hasattr(value, "item")) {
    return tracking::Value::invalid("a " + std::string(py::str(py::type::of(value).attr("__name__"))));
  }
  return value_of(key, value.attr("item")());
}

tracking::Values values_of(const py::dict& values) {
  tracking::Values list;
  list.reserve(values.size());
  for (const auto& [key, value] : values) {
    const auto name = key.cast<std::string>();
    list.emplace_back(name, value_of(name, value));
  }
  return list;
}

Trackers make_trackers(const std::vector<std::string>& log_with, const std::string& folder, int rank, int world_size,
                       const std::string& run_key) {
  tracking::TrackersSetup setup;
  for (const std::string& name : log_with) setup.log_with.emplace_back(name);
  setup.logging_dir = folder;
  setup.rank = rank;
  setup.world_size = world_size;
  setup.run_key = run_key;
  setup.environment = Environment::current();
  return Trackers(setup);
}

}  // namespace

void bind_tracking(py::module_& module) {
  py::class_<Trackers>(module, "Trackers", py::module_local())
      .def(py::init(&make_trackers), py::arg("log_with"), py::arg("folder"), py::arg("rank"), py::arg("world_size"),
           py::arg("run_key"))
      .def("init",
           [](Trackers& trackers, const std::string& project, const py::dict& config, const py::dict& init_kwargs) {
             const tracking::Config settings(plain_value(config, "config"));
             const tracking::Config options(plain_value(init_kwargs, "init_kwargs"));
             const WithoutGil no_gil;
             trackers.init(project, settings, options);
           })
      .def("log", [](Trackers& trackers, const py::dict& values,
                     std::optional<int64_t> step) { trackers.log(values_of(values), step); })
      .def("log_artifact",
           [](Trackers& trackers, const std::string& file) {
             const WithoutGil no_gil;
             trackers.log_artifact(file);
           })
      .def("note", [](Trackers& trackers, const std::string& text) { trackers.note(text); })
      .def("finish",
           [](Trackers& trackers, bool failed) {
             const WithoutGil no_gil;
             trackers.finish(failed ? tracking::RunEnd::kFailed : tracking::RunEnd::kFinished);
           })
      .def_property_readonly("run_folder", [](Trackers& trackers) { return trackers.run_folder().string(); })
      .def_property_readonly("run_id", [](Trackers& trackers) { return trackers.run_id(); })
      .def_property_readonly("is_running", [](Trackers& trackers) { return trackers.is_running(); });
}

}  // namespace hasten::python
