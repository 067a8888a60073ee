// The backend of torch.distributed, for Python.
#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "hasten/comm/c10d/group_backend.h"
#include "hasten/core/env.h"
#include "hasten/process/rank_watch.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

using comm::Group;
using comm::GroupBackend;
using comm::GroupOptions;

// The watch over this rank under hasten launch, from its first group on.
std::shared_ptr<const void>& watch() {
  static auto* const of_process = new std::shared_ptr<const void>;  // Python ends it before the process does
  return *of_process;
}

void watch_from_the_first_group_on() {
  static const bool is_begun = [] {
    watch() = process::watch_rank(Environment::current());
    return true;
  }();
  (void)is_begun;
}

c10::intrusive_ptr<GroupBackend> create_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                              std::chrono::milliseconds timeout, const std::string& name,
                                              const std::string& backend_name) {
  look_at_signals_while_waiting();
  const WithoutGil no_gil;
  watch_from_the_first_group_on();
  GroupOptions options;
  options.timeout = timeout;
  options.name = name;
  return c10::make_intrusive<GroupBackend>(Group::connect(comm::Store::adopt(*store), rank, world_size, options),
                                           backend_name);
}

void bind_backend(py::module_& module) {
  py::class_<GroupBackend, c10d::Backend, c10::intrusive_ptr<GroupBackend>>(module, "ProcessGroupHasten")
      .def_property_readonly("options", [](GroupBackend& backend) { return backend.getBackendOptions(); })
      .def_property_readonly("transport", [](GroupBackend& backend) { return backend.group().backend_name(); });
}

}  // namespace

void bind_group(py::module_& module) {
  // A second copy of this module in the process uses the class of the first.
  if (const auto type = py::detail::get_type_handle(typeid(GroupBackend), /*throw_if_missing=*/false)) {
    module.attr("ProcessGroupHasten") = type;
  } else {
    bind_backend(module);
  }
  module.def("create_group", &create_group, py::arg("store"), py::arg("rank"), py::arg("world_size"),
             py::arg("timeout"), py::arg("name"), py::arg("backend_name"));
  module.def("end_watch", [] {
    const WithoutGil no_gil;
    watch().reset();
  });
  module.def("fail", [](const c10::intrusive_ptr<GroupBackend>& backend, const std::string& words) {
    const WithoutGil no_gil;
    backend->group().fail(words);
  });
}

}  // namespace hasten::python
