// Norms, clipping and overflow of whole gradients, against torch's.
#include "hasten/parallel/clip/clip.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/parallel/clip/clip_async.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/parallel/shard/prepare_sharding.h"

namespace hasten::parallel {
namespace {

std::vector<at::Tensor> with_gradients(double factor = 1) {
  auto generator = at::detail::createCPUGenerator(3);
  std::vector<at::Tensor> result;
  for (const auto& sizes : {std::vector<int64_t>{40, 30}, {7}, {1}}) {
    result.push_back(at::zeros(sizes).requires_grad_());
    result.back().mutable_grad() = at::randn(sizes, generator) * factor;
  }
  result.push_back(at::zeros({2}).requires_grad_());  // has no gradient
  return result;
}

TEST(Clip, NormsAndClippingAreTorchs) {
  for (const double type : {1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) {
    const auto ours = with_gradients(), theirs = with_gradients();
    const double wanted = torch::nn::utils::clip_grad_norm_(theirs, 0.5, type);
    const auto norm = clip_gradients_(ours, 0.5, {.norm_type = type});
    EXPECT_NEAR(norm.norm, wanted, 1e-5 * wanted) << type;
    EXPECT_TRUE(norm.finite);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-5, 1e-7)) << type;
  }
  EXPECT_NEAR(gradient_norm_async(with_gradients()).item<double>(), gradient_norm(with_gradients()).norm, 1e-3);
}

TEST(Clip, UnsplitGradientsAreClippedWhateverTheirLayoutAndSize) {
  const std::shared_ptr<Sharding> unsplit;
  for (const double type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    auto table = at::zeros({5, 2}).requires_grad_(), none = at::zeros({0, 3}).requires_grad_();
    // Row 1 comes twice: uncoalesced, as an embedding leaves it.
    table.mutable_grad() =
        at::_sparse_coo_tensor_unsafe(at::tensor({1, 1, 3}, at::kLong).view({1, 3}), at::full({3, 2}, 3.0), {5, 2});
    none.mutable_grad() = at::zeros({0, 3});
    const at::Tensor dense = table.grad().to_dense();
    const double wanted = std::isinf(type) ? 6.0 : dense.abs().pow(type).sum().pow(1 / type).item<double>();

    const double norm = clip_grad_norm_(unsplit, {table, none}, 1.0, type);

    EXPECT_NEAR(norm, wanted, 1e-4) << type;
    EXPECT_TRUE(at::allclose(table.grad().to_dense(), dense / wanted, 1e-4)) << type;
  }
}

TEST(Clip, ValuesOfSparseGradientsAreLimitedAsSums) {
  auto table = at::zeros({5, 2}).requires_grad_();
  table.mutable_grad() =
      at::_sparse_coo_tensor_unsafe(at::tensor({1, 1, 3}, at::kLong).view({1, 3}), at::full({3, 2}, 3.0), {5, 2});

  clip_grad_value_(nullptr, {table}, 4.0);

  EXPECT_TRUE(table.grad().to_dense()[1].equal(at::full({2}, 4.0))) << "3 and 3 are 6";
  EXPECT_TRUE(table.grad().to_dense()[3].equal(at::full({2}, 3.0)));
}

TEST(Clip, TheNormThatStaysATensorClipsAsTorchDoesAndLeavesOverflows) {
  for (const double limit : {0.0, 0.5, 1e6}) {
    const auto ours = with_gradients(), theirs = with_gradients();
    const double wanted = torch::nn::utils::clip_grad_norm_(theirs, limit);
    const auto norm = clip_gradients_async_(ours, limit);
    EXPECT_NEAR(norm.item<double>(), wanted, 1e-5 * wanted);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-5, 1e-7)) << limit;
  }
  const auto bad = with_gradients();
  bad[1].mutable_grad()[2] = INFINITY;
  const auto before = bad[0].grad().clone();
  EXPECT_TRUE(std::isinf(clip_gradients_async_(bad, 0.5).item<double>()));
  EXPECT_TRUE(at::equal(bad[0].grad(), before));
  EXPECT_THROW(clip_gradients_async_(bad, -1), UsageError);
}

TEST(Clip, AnOverflowIsSeenAndLeavesGradients) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const auto parameters = with_gradients();
    parameters[0].mutable_grad()[3][3] = bad;
    const auto before = parameters[1].grad().clone();
    EXPECT_FALSE(clip_gradients_(parameters, 0.1).finite);
    EXPECT_TRUE(at::equal(parameters[1].grad(), before));
    EXPECT_FALSE(gradient_norm(parameters, {.norm_type = INFINITY}).finite);
  }
  // Large, not infinite: squares overflow in float32, the norm does not.
  EXPECT_TRUE(gradient_norm(with_gradients(1e25)).finite);
}

TEST(Clip, SettingsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(gradient_norm({}, {.norm_type = 0}), UsageError);
  EXPECT_THROW(gradient_norm({}, {.owned = [](const at::Tensor&) { return std::nullopt; }}), UsageError);
  EXPECT_THROW(clip_gradients_({}, NAN), UsageError);
  EXPECT_THROW(clip_values_({}, -1.0), UsageError);
  EXPECT_THROW(clip_values_({}, NAN), UsageError);
  EXPECT_EQ(gradient_norm({}).norm, 0.0);
}

struct Noted : ForwardHook {
  Noted(std::string& log, char name) : log(&log), name(name) {}
  struct Open : Entered {
    Open(std::string& log, char name) : log(&log), name(name) {}
    ~Open() override { *log += name; }
    std::string* log;
    char name;
  };
  std::unique_ptr<Entered> enter(torch::nn::Module&) override {
    *log += name;
    return std::make_unique<Open>(*log, static_cast<char>(name - 32));
  }
  std::string* log;
  char name;
};

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    if (throws) throw std::runtime_error("the user's");
    return x.to(at::kBFloat16);
  }
  at::Tensor other(const at::Tensor& x) { return x.to(at::kBFloat16); }
  bool throws = false;
};
TORCH_MODULE(Net);

TEST(ForwardScope, HooksNestInTheirOrderAndAreLeftByExceptions) {
  std::string log;
  auto scopes = std::make_shared<ForwardScopes>();
  scopes->add(ForwardOrder::kAutocast, std::make_shared<Noted>(log, 'b'));
  const auto first = std::make_shared<Noted>(log, 'a');
  scopes->add(ForwardOrder::kRecompute, first);
  const auto net = std::make_shared<Net>();
  const PreparedModel<Net> model(net, nullptr, scopes);

  model(at::ones({1}));
  EXPECT_EQ(log, "abBA");
  log.clear();
  model->other(at::ones({1}));
  EXPECT_EQ(log, "abBA");
  log.clear();
  (*net)->throws = true;
  EXPECT_THROW(model(at::ones({1})), std::runtime_error);
  EXPECT_EQ(log, "abBA");
  scopes->remove(first.get());
  log.clear();
  (*net)->throws = false;
  model(at::ones({1}));
  EXPECT_EQ(log, "bB");
}

TEST(ForwardScope, OutputsOfCallsBecomeFloat32AndThoseOfOtherMethodsStay) {
  auto scopes = std::make_shared<ForwardScopes>();
  const PreparedModel<Net> model(std::make_shared<Net>(), nullptr, scopes);
  EXPECT_EQ(model(at::ones({1})).scalar_type(), at::kBFloat16);
  scopes->float32_outputs = true;
  EXPECT_EQ(model(at::ones({1})).scalar_type(), at::kFloat);
  EXPECT_EQ(model->other(at::ones({1})).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace hasten::parallel
