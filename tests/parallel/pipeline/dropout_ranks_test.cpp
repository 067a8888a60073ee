// Dropout of whole models that are cut and on stages: equal to one process that has the same masks.
//
// Each rank is a process, for ranks of one model draw alike from their default generators, which threads share. Masks
// are seen where libtorch reports operators (RecordFunction), and one process puts them in the place of its own.
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/env.h"
#include "hasten/core/text.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/pipeline/pipeline.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "hasten/process/process.h"
#include "parallel/pipeline/staged_tensor.h"
#include "parallel/tensor/cut_axis.h"
#include "support/parallel_models.h"
#include "support/processes.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;
using XY = std::pair<at::Tensor, at::Tensor>;

constexpr double kDropped = 0.25;
/// By the number of the call, in the order of the program.
using Masks = std::map<int64_t, at::Tensor>;

// The calls of dropout, and of attention that drops, on this thread while it exists.
class MaskRecorder {
 public:
  MaskRecorder() : handle_(at::addThreadLocalCallback(callbacks())) { current() = this; }
  ~MaskRecorder() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  MaskRecorder(const MaskRecorder&) = delete;
  MaskRecorder& operator=(const MaskRecorder&) = delete;

  /// A forward begins; those before are forgotten.
  void begin() { calls_.clear(); }
  /// Returns the whole masks of values that this rank has. Collective: over ranks that cut them.
  Masks masks() const {
    const at::NoGradGuard no_grad;
    Masks all;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      if (!call.result.defined()) continue;
      at::Tensor result = call.result.detach();
      if (call.axis != nullptr) result = call.axis->wrap(result, call.cut, call.size);
      all[static_cast<int64_t>(i)] = whole_value(result).ne(0);
    }
    return all;
  }

 private:
  struct Call {
    /// What was left of the values: zeros are dropped.
    at::Tensor result;
    /// Attention's weights are cut as its result; null for a value that says it itself.
    tensor::CutAxis* axis = nullptr;
    Cut cut = {};
    int64_t size = 0;
  };

  static MaskRecorder*& current() {
    thread_local MaskRecorder* recorder = nullptr;
    return recorder;
  }
  static at::RecordFunctionCallback callbacks() {
    return at::RecordFunctionCallback(&MaskRecorder::enter, &MaskRecorder::leave)
        .needsOutputs(true)
        .scopes({at::RecordScope::FUNCTION});
  }
  static bool is_attention(const at::RecordFunction& fn) {
    return std::string_view(fn.name()) == "aten::scaled_dot_product_attention";
  }
  static bool is_dropout(const at::RecordFunction& fn) { return std::string_view(fn.name()) == "aten::dropout"; }

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
    MaskRecorder& own = *current();
    if ((is_attention(fn) || is_dropout(fn)) && own.depth_++ == 0) own.calls_.emplace_back();
    return nullptr;
  }
  static void leave(const at::RecordFunction& fn, at::ObserverContext*) {
    MaskRecorder& own = *current();
    if (!is_attention(fn) && !is_dropout(fn)) return;
    --own.depth_;
    const at::Tensor result = fn.outputs().back().toTensor();
    if (pipeline::StagedTensor::of(result) != nullptr) return;  // the operator on the stage's values has been seen
    Call& call = own.calls_.back();
    if (is_dropout(fn)) {
      call.result = result;
    } else if (auto* const global = tensor::GlobalTensor::of(result)) {
      call.axis = &global->axis();
      call.cut = global->cut();
      call.size = result.size(call.cut.dim);
    }
  }

  at::CallbackHandle handle_;
  int depth_ = 0;
  std::vector<Call> calls_ = {};
};

// Dropout by given masks.
class MaskReplay final : public interception::Interceptor {
 public:
  explicit MaskReplay(const Masks& masks) : masks_(masks) {}

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    const std::string& name = op.schema().name();
    if (name.find("scaled_dot_product_attention") != std::string::npos) {
      interception::call_after(op, stack);  // asks for the operators of which it is made
      return true;
    }
    if (name != "aten::dropout") return false;
    const size_t begin = stack.size() - op.schema().arguments().size();
    const at::Tensor x = stack[begin].toTensor();
    const at::Tensor result = x * masks_.at(next_++).to(x.scalar_type()) / (1 - stack[begin + 1].toDouble());
    stack.resize(begin);
    stack.emplace_back(result);
    return true;
  }
  int64_t num_calls() const noexcept { return next_; }

 private:
  const Masks& masks_;
  int64_t next_ = 0;
};

// Every rank's masks, by number. A message has, for each, the number, the sizes and the elements.
Masks of_all_ranks(const comm::Group& group, const Masks& own) {
  std::vector<int64_t> words = {0};
  for (const auto& [call, mask] : own) {
    words.insert(words.end(), {call, mask.dim()});
    words.insert(words.end(), mask.sizes().begin(), mask.sizes().end());
    const at::Tensor elements = mask.to(at::kLong).contiguous();
    words.insert(words.end(), elements.const_data_ptr<int64_t>(),
                 elements.const_data_ptr<int64_t>() + elements.numel());
  }
  Masks all;
  for (const at::Tensor& of_rank : group.all_gather(torch::tensor(words, at::kLong))) {
    const auto* next = of_rank.const_data_ptr<int64_t>() + 1;
    const auto* const end = of_rank.const_data_ptr<int64_t>() + of_rank.numel();
    while (next != end) {
      const int64_t call = *next++, dims = *next++;
      const std::vector<int64_t> sizes(next, next + dims);
      next += dims;
      const at::Tensor mask = at::empty(sizes, at::kLong);
      std::copy_n(next, mask.numel(), mask.mutable_data_ptr<int64_t>());
      next += mask.numel();
      all[call] = mask;
    }
  }
  return all;
}

ParallelModel bert_that_drops() {
  auto config = small_bert_config(32);
  config.vocab_size = 100;
  config.num_labels = 3;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = kDropped;
  auto model = bert_model();
  model.make = [config] { return std::make_shared<models::BertForSequenceClassificationImpl>(config); };
  return model;
}

ParallelModel transformer_that_drops() {
  auto model = encoder_decoder_model();
  model.make = [] {
    auto net = std::make_shared<EncoderDecoderImpl>();
    // Every dropout of its layers, and those of attention weights.
    net->apply([](torch::nn::Module& part) {
      if (auto* const dropout = part.as<torch::nn::DropoutImpl>()) dropout->options.p(kDropped);
      if (auto* const attention = part.as<torch::nn::MultiheadAttentionImpl>()) attention->options.dropout(kDropped);
    });
    return net;
  };
  return model;
}

// How a case divides its model: "bert 2 1 1", of tp, sequence parallel, pp.
struct DropoutLayout {
  std::string model;
  int tp = 1, sequence_parallel = 0, pp = 1;

  std::string words() const { return text(model, ' ', tp, ' ', sequence_parallel, ' ', pp); }
  static DropoutLayout from_environment() {
    std::istringstream words(Environment::current().text("HASTEN_TEST_LAYOUT").value_or(""));
    DropoutLayout layout;
    words >> layout.model >> layout.tp >> layout.sequence_parallel >> layout.pp;
    return layout;
  }
};

struct DroppedStep {
  double loss = 0;
  /// One entry a microbatch.
  std::vector<Masks> masks;
};

std::vector<XY> parts_of(const ParallelBatch& batch, int count) {
  std::vector<XY> parts;
  const auto x = batch.x.tensor_split(count), y = batch.y.tensor_split(count);
  for (size_t i = 0; i < x.size(); ++i) parts.emplace_back(x[i], y[i]);
  return parts;
}

DroppedStep step_of_ranks(const ParallelModel& model, torch::nn::Module& net, const comm::DeviceMesh& mesh) {
  MaskRecorder recorder;
  DroppedStep step;
  const auto batch = parallel_batch();
  if (mesh.group("pp").world_size() == 1) {
    recorder.begin();
    const at::Tensor loss = model.loss(net, batch.x, batch.y);
    step.masks.push_back(recorder.masks());
    loss.backward();
    step.loss = loss.item<double>();
    return step;
  }
  const int parts = 2;
  const Pipeline pipeline(net, mesh.group("pp"), {.microbatches = parts});
  const at::Tensor loss = pipeline.forward_backward(XY(batch.x, batch.y), [&](const XY& part) {
    recorder.begin();
    const at::Tensor own = model.loss(net, part.first, part.second);
    step.masks.push_back(recorder.masks());
    return own;
  });
  step.masks.erase(step.masks.begin());  // of the record
  step.loss = loss.item<double>();
  return step;
}

// Returns the loss of one process, whose parameters have gradients then.
double step_of_one(const ParallelModel& model, torch::nn::Module& net, const std::vector<Masks>& masks) {
  double sum = 0;
  const auto parts = parts_of(parallel_batch(), static_cast<int>(masks.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    MaskReplay replay(masks[i]);
    at::Tensor loss;
    {
      const interception::EveryOperatorScope scope(replay);
      loss = model.loss(net, parts[i].first, parts[i].second) / static_cast<double>(parts.size());
    }
    if (replay.num_calls() != static_cast<int64_t>(masks[i].size()) || masks[i].empty()) {
      throw std::runtime_error(text(replay.num_calls(), " calls of dropout, and masks of ", masks[i].size()));
    }
    loss.backward();
    sum += loss.item<double>();
  }
  return sum;
}

HASTEN_PROCESS_CASE(dropout_of_parts) {
  const process::Process process;
  const auto layout = DropoutLayout::from_environment();
  const ParallelModel model = layout.model == "bert" ? bert_that_drops() : transformer_that_drops();
  const comm::DeviceMesh mesh(process.group(), {{"pp", layout.pp}, {"tp", layout.tp}});
  for (const char* axis : {"pp", "tp"}) mesh.group(axis).connect_backends();
  torch::manual_seed(0);
  const auto alone = model.make();
  torch::manual_seed(0);
  const auto net = model.make();
  const TensorParallel cut(*net, mesh.group("tp"), {.sequence_parallel = layout.sequence_parallel != 0});

  DroppedStep step = step_of_ranks(model, *net, mesh);
  double kept = 0, all = 0;
  for (Masks& masks : step.masks) {
    masks = of_all_ranks(process.group(), masks);
    for (const auto& [call, mask] : masks) {
      kept += mask.sum().item<double>();
      all += static_cast<double>(mask.numel());
    }
  }
  const double expected = step_of_one(model, *alone, step.masks);

  int compared = 0;
  const auto whole = alone->named_parameters();
  for (const auto& item : net->named_parameters()) {
    const at::Tensor& own = item.value().grad();
    if (!own.defined()) continue;  // another stage's
    const auto found = cut.cuts().find(item.key());
    at::Tensor wanted = whole[item.key()].grad();
    if (found != cut.cuts().end()) {
      const auto tp = mesh.group("tp");
      wanted = cut_tensor(wanted, found->second, tp.world_size(), tp.rank());
    }
    ++compared;
    if (!at::allclose(own, wanted, 1e-4, 1e-5)) {
      std::printf("gradient of %s is off by %g\n", item.key().c_str(), (own - wanted).abs().max().item<double>());
    }
  }
  std::printf("loss %s, %d gradients, kept %.3f\n", std::abs(step.loss - expected) < 1e-5 ? "equal" : "differs",
              compared, kept / all);
  return 0;
}

void expect_masks_of_one_process(const DropoutLayout& layout) {
  const auto results = run_processes(layout.tp * layout.pp, "dropout_of_parts",
                                     {{"ACCELERATE_USE_CPU", "1"}, {"HASTEN_TEST_LAYOUT", layout.words()}});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << layout.words() << '\n' << result.output;
    EXPECT_THAT(result.output, HasSubstr("loss equal, ")) << layout.words();
    EXPECT_THAT(result.output, ::testing::Not(HasSubstr(", 0 gradients"))) << layout.words();
    EXPECT_THAT(result.output, ::testing::Not(HasSubstr("is off by"))) << layout.words();
    // Values have zeros besides: of keys behind a mask, and behind relu.
    EXPECT_THAT(result.output, ::testing::ContainsRegex("kept 0\\.[34567]")) << layout.words();
  }
}

class DropoutOfModels : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, DropoutOfModels, ::testing::Values("bert", "transformer"),
                         [](const auto& info) { return info.param; });

TEST_P(DropoutOfModels, OverCutLayersIsThatOfOneProcess) {
  expect_masks_of_one_process({.model = GetParam(), .tp = 2});
  expect_masks_of_one_process({.model = GetParam(), .tp = 2, .sequence_parallel = 1});
}
TEST_P(DropoutOfModels, OverFourPartsIsThatOfOneProcess) {
  expect_masks_of_one_process({.model = GetParam(), .tp = 4, .sequence_parallel = 1});
}
TEST_P(DropoutOfModels, OnStagesIsThatOfOneProcess) {
  expect_masks_of_one_process({.model = GetParam(), .pp = 2});
}
TEST_P(DropoutOfModels, OnStagesOfCutLayersIsThatOfOneProcess) {
  expect_masks_of_one_process({.model = GetParam(), .tp = 2, .pp = 2});
  expect_masks_of_one_process({.model = GetParam(), .tp = 2, .sequence_parallel = 1, .pp = 2});
}

}  // namespace
}  // namespace hasten::parallel
