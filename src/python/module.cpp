// The module hasten._engine: this library for Python. python/hasten/ is what users see of it.
#include <torch/version.h>

#include "hasten/core/version.h"
#include "python/bindings.h"

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The engine of hasten. Its interface is private to the package.";
  module.attr("version") = hasten::version();
  module.attr("torch_version") = TORCH_VERSION;
  hasten::python::bind_errors(module);
  hasten::python::bind_log(module);
  hasten::python::bind_group(module);
  hasten::python::bind_files(module);
  hasten::python::bind_tracking(module);
  hasten::python::bind_data(module);
  hasten::python::bind_trainer(module);
  hasten::python::bind_uneven_loop(module);
}
