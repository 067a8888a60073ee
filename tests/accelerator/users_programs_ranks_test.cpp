// Programs as users write them, under every axis of model parallelism: they train as on one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/parallel/context/context_parallel.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using parallel::TensorPlan;
using Tokens = std::pair<at::Tensor, at::Tensor>;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWidth = 16, kHeads = 4, kVocabulary = 96, kInner = 32, kTokens = 16;

/// What a program computes between its embedding and its head, [batch, tokens, width] to the same.
struct Body : nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

struct UsersNetImpl : nn::Module {
  explicit UsersNetImpl(const std::function<std::shared_ptr<Body>()>& make) {
    register_module("table", table);
    body = register_module("body", make());
    second = register_module("second", make());
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) { return head(second->forward(body->forward(table(ids)))); }
  nn::Embedding table{kVocabulary, kWidth};
  std::shared_ptr<Body> body, second;
  nn::Linear head{kWidth, kVocabulary};
};

using Loss = std::function<at::Tensor(UsersNetImpl& net, const at::Tensor& logits, const at::Tensor& y)>;

struct UsersProgram {
  std::string name;
  std::function<std::shared_ptr<Body>()> body;
  TensorPlan plan;
  Loss loss;
};

at::Tensor users_loss(UsersNetImpl&, const at::Tensor& logits, const at::Tensor& y) {
  return F::cross_entropy(logits.flatten(0, 1), y.flatten());
}

struct EinsumAttention : Body {
  EinsumAttention() {
    for (auto& [name, layer] : std::vector<std::pair<std::string, nn::Linear>>{{"q", q}, {"k", k}, {"v", v}, {"o", o}})
      register_module(name, layer);
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const auto heads = [&](nn::Linear& layer, const at::Tensor& h) {
      return layer(h).view({h.size(0), h.size(1), kHeads, kWidth / kHeads});
    };
    const at::Tensor h = norm(x);
    const at::Tensor scores = torch::einsum("bqhd,bkhd->bhqk", {heads(q, h), heads(k, h)}) / 2.0;
    const at::Tensor mask = torch::ones({h.size(1), h.size(1)}, at::kBool).triu(1);
    const at::Tensor weights = scores.masked_fill(mask, -INFINITY).softmax(-1);
    return x + o(torch::einsum("bhqk,bkhd->bqhd", {weights, heads(v, h)}).flatten(2));
  }
  nn::Linear q{kWidth, kWidth}, k{kWidth, kWidth}, v{kWidth, kWidth}, o{kWidth, kWidth};
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
};
const TensorPlan kAttentionPlan = {{"**.q", "colwise"}, {"**.k", "colwise"}, {"**.v", "colwise"}, {"**.o", "rowwise"}};

/// A feed-forward body whose inner value [batch, tokens, inner] a program treats as it likes.
struct InnerBody : Body {
  explicit InnerBody(std::function<at::Tensor(const at::Tensor&)> treat) : treat(std::move(treat)) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) override { return x + down(treat(up(x))); }
  std::function<at::Tensor(const at::Tensor&)> treat;
  nn::Linear up{kWidth, kInner}, down{kInner, kWidth};
};
const TensorPlan kInnerPlan = {{"**.up", "colwise"}, {"**.down", "rowwise"}};

UsersProgram inner(const std::string& name, const std::function<at::Tensor(const at::Tensor&)>& treat,
                   const Loss& loss = users_loss) {
  return {name, [=] { return std::make_shared<InnerBody>(treat); }, kInnerPlan, loss};
}

struct TwoDimNorm : Body {
  TwoDimNorm() {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) override { return x + down(norm(torch::gelu(up(x)))); }
  nn::LayerNorm norm{nn::LayerNormOptions({kTokens, kInner})};
  nn::Linear up{kWidth, kInner}, down{kInner, kWidth};
};

struct Convolutions : Body {
  Convolutions() {
    register_module("conv", conv);
    register_module("pool", pool);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor image = conv(x.unsqueeze(1)).relu();
    return x + down(up(pool(image).squeeze(1)).relu_());
  }
  nn::Conv2d conv{nn::Conv2dOptions(1, 4, 3).padding(1)};
  nn::Conv2d pool{nn::Conv2dOptions(4, 1, 1)};
  nn::Linear up{kWidth, kInner}, down{kInner, kWidth};
};

struct LibtorchAttention : Body {
  LibtorchAttention() { register_module("attention", attention); }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor t = x.transpose(0, 1);
    const at::Tensor padding = torch::zeros({x.size(0), x.size(1)}, at::kBool);
    padding.slice(1, kTokens - 3).fill_(true);
    const auto [out, weights] = attention(t, t, t, padding, true);
    return x + out.transpose(0, 1) + weights.sum(-1, true) * 0.1;
  }
  nn::MultiheadAttention attention{nn::MultiheadAttentionOptions(kWidth, kHeads)};
};

at::Tensor masked_mean(UsersNetImpl&, const at::Tensor& logits, const at::Tensor& y) {
  const at::Tensor each =
      F::cross_entropy(logits.flatten(0, 1), y.flatten(), F::CrossEntropyFuncOptions().reduction(torch::kNone));
  const at::Tensor mask = (y.flatten() % 3 != 0).to(at::kFloat);
  return (each * mask).sum() / mask.sum();
}
at::Tensor summed(UsersNetImpl&, const at::Tensor& logits, const at::Tensor& y) {
  return F::cross_entropy(logits.flatten(0, 1), y.flatten(),
                          F::CrossEntropyFuncOptions().reduction(torch::kSum).label_smoothing(0.1)) /
         128;
}
std::vector<UsersProgram> users_programs() {
  std::vector<UsersProgram> all = {
      {"Einsum", [] { return std::make_shared<EinsumAttention>(); }, kAttentionPlan, users_loss},
      {"NormOfTwoDims", [] { return std::make_shared<TwoDimNorm>(); }, kInnerPlan, users_loss},
      {"Convolutions", [] { return std::make_shared<Convolutions>(); }, kInnerPlan, users_loss},
      {"LibtorchAttention", [] { return std::make_shared<LibtorchAttention>(); }, {}, users_loss},
      inner(
          "MaskedMean", [](const at::Tensor& h) { return h.relu(); }, masked_mean),
      inner(
          "SummedLoss", [](const at::Tensor& h) { return h.relu(); }, summed),
  };
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> treatments = {
      {"InPlace",
       [](const at::Tensor& h) {
         auto g = h * 1;
         g.add_(h).mul_(0.5).clamp_min_(-0.1);
         return g;
       }},
      {"WritesToSamples",
       [](const at::Tensor& h) {
         auto g = h.clone();
         g.select(0, 1).mul_(2);
         g.slice(0, 2, 4).add_(1);
         return g;
       }},
      {"WritesToViews",
       [](const at::Tensor& h) {
         auto g = h.clone();
         g.view({h.size(0), h.size(1), kHeads, -1}).mul_(2);
         g.reshape({-1, kInner}).add_(0.1);
         g.flatten(0, 1).mul_(0.5);
         return g;
       }},
      // What one process copies as well may be written to.
      {"WritesToReshapedCopies",
       [](const at::Tensor& h) {
         const auto t = h.transpose(1, 2).reshape({h.size(0), -1}).mul_(0.5);
         const auto odd = h.slice(1, 0, 3).transpose(1, 2).reshape({-1, 48}).add_(1);
         return t.view({h.size(0), kInner, -1}).transpose(1, 2) + odd.sum() * 0.01;
       }},
      {"ChunkAndCat",
       [](const at::Tensor& h) {
         auto c = h.chunk(4, -1);
         return at::cat({c[1], c[0] * 2, c[3], c[2]}, -1);
       }},
      {"UnevenSplit",
       [](const at::Tensor& h) {
         auto c = h.split_with_sizes({7, 20, 5}, -1);
         return at::cat({c[2], c[1], c[0]}, -1);
       }},
      {"Stack",
       [](const at::Tensor& h) {
         return at::stack({h, h.flip(-1), h.roll(3, -1)}, -1).mean(-1);
       }},
      {"Gather", [](const at::Tensor& h) { return h.gather(-1, at::arange(kInner).flip(0).expand(h.sizes())); }},
      {"GatherTokens",
       [](const at::Tensor& h) {
         return h.gather(1, at::arange(kTokens).flip(0).view({1, -1, 1}).expand(h.sizes()));
       }},
      {"Scatter",
       [](const at::Tensor& h) {
         return at::zeros(h.sizes()).scatter(-1, at::arange(kInner).flip(0).expand(h.sizes()), h);
       }},
      {"ScatterAdd",
       [](const at::Tensor& h) {
         return at::zeros(h.sizes()).scatter_add(-1, (at::arange(kInner) / 2).to(at::kLong).expand(h.sizes()), h);
       }},
      {"IndexSelect",
       [](const at::Tensor& h) { return h.index_select(-1, (at::arange(kInner) * 5).remainder(kInner)); }},
      {"IndexAndMask",
       [](const at::Tensor& h) {
         return at::where(h > 0, h, h.index({torch::indexing::Ellipsis, at::arange(kInner).flip(0)}));
       }},
      {"IndexPut",
       [](const at::Tensor& h) {
         auto g = h.clone();
         g.index_put_({torch::indexing::Slice(), torch::indexing::Slice(), at::tensor({3, 30})},
                      h.select(-1, 5).unsqueeze(-1));
         return g;
       }},
      {"Cumsum", [](const at::Tensor& h) { return h.cumsum(-1) * 0.1 + h.cumsum(1) * 0.1; }},
      {"SortAndTopk",
       [](const at::Tensor& h) { return std::get<0>(h.sort(-1)) + std::get<0>(h.topk(4, -1)).sum(-1, true); }},
      {"Moments",
       [](const at::Tensor& h) {
         return (h - h.mean(-1, true)) / (h.std(-1, true, true) + 1) + h.var({1, 2}, true, true) + h.amax(-1, true);
       }},
      {"NormalizedRows",
       [](const at::Tensor& h) { return F::normalize(h, F::NormalizeFuncOptions().dim(-1)) + h.logsumexp(1, true); }},
      {"Glu",
       [](const at::Tensor& h) {
         return at::cat({at::glu(h, -1), at::glu(h.flip(-1), -1)}, -1);
       }},
      {"HeadsAndBack",
       [](const at::Tensor& h) {
         return h.view({h.size(0), h.size(1), kHeads, -1})
             .permute({0, 2, 3, 1})
             .softmax(2)
             .permute({0, 3, 1, 2})
             .reshape({h.size(0), h.size(1), -1});
       }},
      {"PadAndUnfold",
       [](const at::Tensor& h) {
         return at::constant_pad_nd(h, {1, 1}).unfold(-1, 3, 1).mean(-1);
       }},
      {"OuterOfItself", [](const at::Tensor& h) { return at::matmul(h, at::matmul(h.transpose(1, 2), h)) * 0.01; }},
      {"RepeatAndTile",
       [](const at::Tensor& h) {
         return h.repeat({1, 1, 2}).unflatten(-1, {2, kInner}).sum(2) + h.repeat_interleave(2, -1).slice(-1, 0, kInner);
       }},
      {"Checks",
       [](const at::Tensor& h) {
         return h.isnan().any().item<bool>() || h.abs().max().item<float>() > 1e6 ? h * 0 : h.clamp(-1, 1);
       }},
  };
  for (const auto& [name, treat] : treatments) all.push_back(inner(name, treat));
  // A parameter of one stage is read on another, which computes the loss.
  all.push_back(inner(
      "PenaltyOfWeights", [](const at::Tensor& h) { return torch::gelu(h); },
      [](UsersNetImpl& net, const at::Tensor& logits, const at::Tensor& y) {
        at::Tensor loss = users_loss(net, logits, y);
        for (const auto& parameter : net.parameters()) loss = loss + 0.01 * parameter.square().sum();
        return loss;
      }));
  return all;
}

struct UsersRun {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

std::shared_ptr<UsersNetImpl> users_net(const UsersProgram& program) {
  torch::manual_seed(3);
  auto net = std::make_shared<UsersNetImpl>(program.body);
  // The first table is frozen, and the head learns faster.
  net->table->weight.set_requires_grad(false);
  return net;
}

std::vector<torch::optim::OptimizerParamGroup> users_groups(UsersNetImpl& net) {
  std::vector<at::Tensor> bodies = net.body->parameters();
  for (const auto& parameter : net.second->parameters()) bodies.push_back(parameter);
  torch::optim::OptimizerParamGroup slow(bodies);
  torch::optim::OptimizerParamGroup fast(net.head->parameters(), std::make_unique<torch::optim::SGDOptions>(0.3));
  return {slow, fast};
}

constexpr int kUsersSteps = 3;

UsersRun users_run_alone(const UsersProgram& program) {
  const auto net = users_net(program);
  torch::optim::SGD optimizer(users_groups(*net), torch::optim::SGDOptions(0.1));
  const auto batch = parallel_batch();
  UsersRun run;
  for (int step = 0; step < kUsersSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = program.loss(*net, net->forward(batch.x), batch.y);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  for (const auto& item : net->named_parameters()) run.weights[item.key()] = item.value().detach().clone();
  return run;
}

class UsersPrograms : public ::testing::TestWithParam<UsersProgram> {
 protected:
  /// Trains in the layout, and compares losses and weights with one process. `words`: a refusal is as good, by these.
  void expect_as_alone(parallel::ParallelOptions layout) const {
    const auto& program = GetParam();
    const UsersRun expected = users_run_alone(program);
    if (layout.tp > 1) layout.tensor_plan = program.plan;
    const int world = layout.tp * layout.pp * layout.cp * layout.sp;
    std::vector<std::shared_ptr<UsersNetImpl>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(users_net(program));
    const auto batch = parallel_batch();
    run_ranks(world, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = layout});
      const auto net = nets[static_cast<size_t>(process.rank())];
      torch::optim::SGD sgd(users_groups(*net), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < kUsersSteps; ++step) {
        optimizer.zero_grad();
        at::Tensor loss;
        if (layout.pp > 1) {
          loss = accelerator.forward_backward(Tokens(batch.x, batch.y), [&, &model = model](const Tokens& part) {
            return program.loss(*net, model(part.first), part.second);
          });
        } else {
          loss = program.loss(*net, model(batch.x), batch.y);
          accelerator.backward(loss);
        }
        accelerator.clip_grad_norm_(net->parameters(), 0.5);
        optimizer.step();
        EXPECT_NEAR(parallel::whole_value(loss).item<double>(), expected.losses[static_cast<size_t>(step)], 2e-5)
            << "step " << step;
      }
      for (const auto& item : net->named_parameters()) {
        const at::Tensor whole = parallel::gather_parameter(item.value());
        EXPECT_LT((whole - expected.weights.at(item.key())).abs().max().item<double>(), 2e-4) << item.key();
      }
    });
  }
};

TEST_P(UsersPrograms, WithCutLayersTrainAsOnOneProcess) {
  expect_as_alone({.tp = 2});
}
TEST_P(UsersPrograms, WithCutTokensBetweenLayersTrainAsOnOneProcess) {
  expect_as_alone({.tp = 2, .sequence_parallel = true});
}
TEST_P(UsersPrograms, WithCutSequencesTrainAsOnOneProcess) {
  expect_as_alone({.cp = 2});
}
TEST_P(UsersPrograms, OnStagesTrainAsOnOneProcess) {
  expect_as_alone({.pp = 2, .microbatches = 1});
}
TEST_P(UsersPrograms, OnStagesOfCutLayersTrainAsOnOneProcess) {
  expect_as_alone({.tp = 2, .pp = 2, .microbatches = 1});
}

// What each of two ranks with cut layers says of a body's own treatment.
std::vector<std::string> refused_writes(const std::function<at::Tensor(const at::Tensor&)>& treat) {
  const auto program = inner("", treat);
  std::vector<std::shared_ptr<UsersNetImpl>> nets = {users_net(program), users_net(program)};
  const auto batch = parallel_batch();
  return run_ranks_collecting(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.tp = 2, .tensor_plan = program.plan}});
    const auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    (void)model(batch.x);
  });
}

TEST(WritesOfUsers, ToViewsOfOtherRanksPartsAreRefused) {
  const auto refusals = refused_writes([](const at::Tensor& h) {
    auto g = h.clone();
    g.slice(-1, 4, 20).copy_(h.slice(-1, 8, 24));
    return g;
  });
  for (const std::string& refusal : refusals) {
    EXPECT_THAT(refusal, ::testing::HasSubstr("'aten::copy_' writes to a view of a value that is cut over tp"));
    EXPECT_THAT(refusal, ::testing::HasSubstr("Write to a clone() of the view"));
  }
}

// Each of these would write to a copy, and leave the value as it was.
TEST(WritesOfUsers, ToGatheredViewsReshapesAndChunksAreRefused) {
  const std::vector<std::function<void(const at::Tensor& g)>> writes = {
      [](const at::Tensor& g) {
        g.view({-1, 48}).mul_(2);
      },
      [](const at::Tensor& g) {
        g.reshape({-1, 48}).mul_(2);
      },
      [](const at::Tensor& g) {
        g.view({-1, 48}).slice(0, 0, 2).mul_(2);
      },
      [](const at::Tensor& g) {
        g.view({-1, 48}).unsqueeze(0).mul_(2);
      },
      [](const at::Tensor& g) { g.chunk(3, -1)[0].mul_(2); },
      [](const at::Tensor& g) {
        g.unflatten(-1, {2, 16}).transpose(-1, -2).select(-1, 0).mul_(2);
      },
  };
  for (size_t i = 0; i < writes.size(); ++i) {
    const auto refusals = refused_writes([&](const at::Tensor& h) {
      const auto g = h.slice(1, 0, 3).clone();
      writes[i](g);
      return at::cat({g, h.slice(1, 3)}, 1);
    });
    EXPECT_THAT(refusals,
                ::testing::Each(::testing::HasSubstr("'aten::mul_' writes to a view of a value that is cut over tp")))
        << i;
  }
}

// A part need not lie in a row where the whole value does.
TEST(WritesOfUsers, ToReshapesOfPartsThatLieApartReachTheValueOrAreRefused) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    const parallel::ContextParallel context(process.group());
    const at::Tensor x = at::arange(24).to(at::kFloat).view({2, 4, 3});
    const at::Tensor cut = context.cut(x.clone(), 1);
    cut.view({8, 3}).mul_(2);
    EXPECT_TRUE(parallel::whole_value(cut).equal(x * 2));
  });
  for (const auto& one : words) {
    if (one.empty()) continue;
    EXPECT_THAT(one, ::testing::HasSubstr("writes to a view of a value that is cut over cp"));
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, UsersPrograms, ::testing::ValuesIn(users_programs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hasten
