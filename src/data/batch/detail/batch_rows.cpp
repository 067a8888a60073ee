// The errors of values that cannot be cut or joined; see batch_merge.h and batch_rows.h.
#include "hasten/data/batch/detail/batch_rows.h"

#include "data/origin.h"
#include "hasten/core/error.h"

namespace hasten::data::detail {

void throw_batches_differ(const std::string& first, const std::string& other) {
  throw UsageError(kOrigin, "batches that are put together differ: one has ", first, " where another has ", other,
                   ". Give every batch the same structure, and what differs from sample to sample as a ",
                   "tensor with a row or a std::vector with an element a sample.");
}

namespace {

[[noreturn]] void throw_not_one_a_sample(const std::string& what, size_t num_rows) {
  throw UsageError(kOrigin, "a batch of ", num_rows, " samples holds ", what,
                   ", so it cannot be cut into its samples or joined with others. Give a tensor a row a sample ",
                   "and a std::vector an element a sample, or leave it out of the batch.");
}

}  // namespace

void check_rows(const at::Tensor& tensor, size_t num_rows) {
  if (tensor.layout() != at::kStrided) {
    throw_not_one_a_sample(text("a tensor of layout ", tensor.layout()), num_rows);
  }
  if (tensor.dim() > 0 && static_cast<size_t>(tensor.size(0)) == num_rows) return;
  throw_not_one_a_sample(text("a tensor of shape ", tensor.sizes()), num_rows);
}

void check_elements(size_t given, size_t num_rows) {
  if (given != num_rows) throw_not_one_a_sample(text("a vector of ", given, " elements"), num_rows);
}

}  // namespace hasten::data::detail
