// The checks of tensors that make a dataset together; see tensor_dataset.h.
#include "hasten/data/dataset/tensor_dataset.h"

#include <vector>

#include "hasten/core/error.h"

namespace hasten::data {

namespace {

size_t check(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  bool equal = true;
  std::vector<std::string> shapes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].dim() == 0) {
      throw UsageError(Origin{"data"}, "tensor ", names[i], " of the dataset ",
                       tensors[i].defined() ? "has no dimension" : "is undefined",
                       ", expected one row a sample. Give tensors of 1 or more dimensions.");
    }
    equal = equal && tensors[i].size(0) == tensors[0].size(0);
    shapes.push_back(text(names[i], " [", join(tensors[i].sizes()), "]"));
  }
  if (!equal) {
    throw UsageError(Origin{"data"}, "the dataset's tensors differ in their first size: ", join(shapes),
                     "; expected as many rows in each. Check that they belong together.");
  }
  return static_cast<size_t>(tensors[0].size(0));
}

}  // namespace

size_t detail::check_tensors(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors.size(); ++i) names.push_back(text(i));
  return check(names, tensors.vec());
}

size_t detail::check_named_tensors(const std::map<std::string, at::Tensor>& tensors) {
  if (tensors.empty()) {
    throw UsageError(Origin{"data"}, "a dataset of no tensors. Name one at least.");
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    names.push_back("'" + name + "'");
    values.push_back(tensor);
  }
  return check(names, values);
}

NamedTensorDataset::NamedTensorDataset(std::map<std::string, at::Tensor> tensors)
    : tensors_(std::move(tensors)), size_(detail::check_named_tensors(tensors_)) {}

std::map<std::string, at::Tensor> NamedTensorDataset::get_batch(c10::ArrayRef<size_t> indices) {
  std::map<std::string, at::Tensor> batch;
  for (const auto& [name, tensor] : tensors_) batch.emplace(name, gather_rows(tensor, indices));
  return batch;
}

}  // namespace hasten::data
