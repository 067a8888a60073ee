// See samples.h.
#include "learner/sample_tables.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "hasten/core/text.h"
#include "hasten/training/image_values.h"

namespace hasten::learner {

std::string sample_text(const at::Tensor& value, const std::vector<std::string>& vocab) {
  if (value.numel() != 1) return text("tensor ", value.sizes());
  if (value.is_floating_point()) return text(value.item<double>());
  const auto index = value.item<int64_t>();
  return index >= 0 && static_cast<size_t>(index) < vocab.size() ? vocab[static_cast<size_t>(index)] : text(index);
}

at::Tensor sample_image(const at::Tensor& input) {
  if (input.dim() != 3 || (input.size(0) != 1 && input.size(0) != 3) || !input.is_floating_point()) return {};
  return (input - input.min()) / (input.max() - input.min()).clamp_min(1e-12);
}

void show_in_trackers(tracking::Trackers& trackers, const Loaders& loaders, const Predictions& results,
                      int64_t num_samples, std::optional<int64_t> step) {
  tracking::Table table{.columns = {"target", "prediction"}};
  std::vector<at::Tensor> images;
  for (int64_t i = 0; i < std::min(num_samples, results.decoded.size(0)); ++i) {
    table.rows.push_back({results.targets.defined() ? sample_text(results.targets[i], loaders.vocab) : "-",
                          sample_text(results.decoded[i], loaders.vocab)});
    if (const auto image = results.inputs.defined() ? sample_image(results.inputs[i]) : at::Tensor(); image.defined())
      images.push_back(image);
  }
  trackers.log_table("predictions", table, step);
  if (!images.empty()) trackers.log_images({{"inputs", images}}, step);
}

}  // namespace hasten::learner
