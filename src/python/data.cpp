// Which batches of an order each rank gets, for Python's loaders.
#include <optional>
#include <utility>
#include <vector>

#include "hasten/data/sampler/batch_shard.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

using data::BatchShard;
using data::BatchShardOptions;
using data::Indices;

BatchShardOptions shard_of(int rank, int world_size, std::optional<size_t> batch_size, bool split_batches,
                           bool even_batches, bool drop_last) {
  return {.rank = rank,
          .world_size = world_size,
          .batch_size = batch_size,
          .split_batches = split_batches,
          .even_batches = even_batches,
          .drop_last = drop_last};
}

// `source`: gives the next global batch, None at the end.
BatchShard make_shard(const BatchShardOptions& options, py::function source, size_t position,
                      std::vector<Indices> head) {
  return {options,
          [source = std::move(source)]() -> std::optional<Indices> {
            const py::object batch = source();
            if (batch.is_none()) return std::nullopt;
            return batch.cast<Indices>();
          },
          {.position = position, .head = std::move(head)}};
}

}  // namespace

void bind_data(py::module_& module) {
  py::class_<BatchShardOptions>(module, "ShardOfBatches", py::module_local())
      .def(py::init(&shard_of), py::arg("rank"), py::arg("world_size"), py::arg("batch_size"), py::arg("split_batches"),
           py::arg("even_batches"), py::arg("drop_last"))
      .def("length", [](const BatchShardOptions& self, size_t num_batches, size_t last_size) {
        return data::shard_length(num_batches, last_size, self);
      });
  py::class_<BatchShard>(module, "BatchShard", py::module_local())
      .def(py::init(&make_shard), py::arg("options"), py::arg("source"), py::arg("position"), py::arg("head"))
      .def("next", [](BatchShard& self) -> py::object {
        const auto batch = self.next();
        if (!batch) return py::none();
        return py::make_tuple(batch->indices, batch->num_local_valid, batch->end);
      });
}

}  // namespace hasten::python
