// prepare_inference_pipeline: a model too large for one device runs on several, batch by batch in parts (the place of
// Accelerate's prepare_pippy).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "hasten/parallel/model/prepared_model.h"
#include "hasten/parallel/pipeline/pipeline.h"

namespace hasten::parallel {

struct InferencePipelineOptions {
  /// The first module of each stage but the first. Empty: balanced (PipelineOptions::stages).
  std::vector<std::string> split_points = {};
  /// Parts of a batch. 0: as many as ranks.
  int num_chunks = 0;
  /// Every rank gets the outputs. False: only the rank of the last stage, the others an undefined tensor.
  bool gather_output = false;
};

/// A model whose forward runs through the stages. A value handle; copies share the model.
template <class M>
class InferencePipeline {
 public:
  InferencePipeline(std::shared_ptr<M> model, const comm::Group& group, const InferencePipelineOptions& options)
      : model_(std::move(model)),
        pipeline_(
            module_of(*model_), group,
            {.stages = options.split_points, .microbatches = options.num_chunks, .order = plan::OrderKind::kGPipe}),
        gathers_(options.gather_output) {
    module_of(*model_).eval();
  }

  /// Calls forward on parts of the arguments, split along dimension 0, without gradients, and joins what it returns, a
  /// tensor. All ranks give the same arguments. A batch of fewer samples than num_chunks has a part for each sample.
  /// Collective: yes. Blocks: until this rank's part is done. Throws: as Pipeline::forward.
  template <class... Arguments>
  at::Tensor operator()(const Arguments&... arguments) const {
    const std::tuple<Arguments...> batch(arguments...);
    return pipeline_.forward(
        batch,
        [this](const std::tuple<Arguments...>& part) {
          return std::apply([this](const auto&... one) { return module_of(*model_).forward(one...); }, part);
        },
        gathers_);
  }

  M& unwrap() const noexcept { return *model_; }
  const Pipeline& pipeline() const noexcept { return pipeline_; }

 private:
  std::shared_ptr<M> model_;
  Pipeline pipeline_;
  bool gathers_;
};

/// Divides a model over the ranks of a group, for inference; it goes into evaluation mode. A holder or shared_ptr
/// shares its module, another lvalue is borrowed and must outlive the result.
/// Collective: yes. Blocks: until all ranks have come. Throws: as Pipeline's constructor.
template <class M>
  requires is_module_v<M>
auto prepare_inference_pipeline(M& model, const comm::Group& group, const InferencePipelineOptions& options = {}) {
  using Held = std::remove_const_t<M>;
  if constexpr (detail::is_module_pointer<Held>::value) {
    return InferencePipeline<Held>(std::make_shared<Held>(model), group, options);
  } else {
    return InferencePipeline<Held>(std::shared_ptr<Held>(std::shared_ptr<void>(), &model), group, options);
  }
}

}  // namespace hasten::parallel
