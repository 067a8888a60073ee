// Every optimizer on cut parameters and on stages: it steps as on one process, or it is refused with a remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/deepspeed.h"
#include "hasten/optim/fastai.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/larc.h"
#include "hasten/optim/novograd.h"
#include "hasten/parallel/layout/placement.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;
using Tokens = std::pair<at::Tensor, at::Tensor>;
using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

struct StepRule {
  const char* name = "";
  std::function<OptimizerPtr(const Groups&)> make;
  /// The words of the refusal; "": it steps.
  const char *with_tp = "", *with_pp = "";
};

// An optimizer, and the one around which it is.
template <class Outer, class Inner>
struct Around {
  Inner inner;
  Outer outer;
  template <class... Options>
  explicit Around(const Groups& groups, const Options&... options) : inner(groups, options...), outer(inner) {}
};

template <class Inner, class... Options>
OptimizerPtr larc_around(const Groups& groups, const Options&... options) {
  const auto both = std::make_shared<Around<optim::Larc, Inner>>(groups, options...);
  return {both, &both->outer};
}

std::function<OptimizerPtr(const Groups&)> by_fastai(const optim::fastai::Factory& factory, double lr = 1e-2) {
  return [=](const Groups& groups) { return factory(groups, lr); };
}

// Epsilons are large: gradients that are zero but for rounding must not become steps.
std::vector<StepRule> step_rules() {
  namespace fastai = optim::fastai;
  return {
      {"Lamb",
       [](const Groups& groups) {
         return std::make_shared<optim::Lamb>(groups, optim::LambOptions(1e-2).eps(1e-3).max_grad_norm(0));
       },
       "Lamb with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"ClippingLamb",
       [](const Groups& groups) { return std::make_shared<optim::Lamb>(groups, optim::LambOptions(1e-2)); },
       "Lamb with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW.",
       "Lamb with pp = 2: it needs norms of all parameters, and this rank has parts. Set max_grad_norm(0)"},
      {"FusedLamb",
       [](const Groups& groups) {
         return std::make_shared<optim::deepspeed::Lamb>(groups, optim::deepspeed::LambOptions(1e-2).eps(1e-3));
       },
       "FusedLamb with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"NovoGrad",
       [](const Groups& groups) {
         return std::make_shared<optim::NovoGrad>(groups, optim::NovoGradOptions(1e-2).eps(1e-2));
       },
       "NovoGrad with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"Larc",
       [](const Groups& groups) {
         return larc_around<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.5).momentum(0.9));
       },
       "Larc with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"LarcAroundClippingLamb",
       [](const Groups& groups) { return larc_around<optim::Lamb>(groups, optim::LambOptions(1e-2)); },
       "Larc with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW.",
       "Larc with pp = 2: it needs norms of all parameters, and this rank has parts. Put it around an optimizer "},
      {"LBFGS", [](const Groups& groups) { return std::make_shared<torch::optim::LBFGS>(groups); },
       "LBFGS with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW.",
       "LBFGS with pp = 2: it needs norms of all parameters, and this rank has parts. Use AdamW."},
      {"FastaiLamb", by_fastai(fastai::lamb({.eps = 1e-2})),
       "fastai's Lamb with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"FastaiLarc", by_fastai(fastai::larc(), 0.5),
       "fastai's Larc with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"FastaiLookaheadOfLarc", by_fastai(fastai::lookahead(fastai::larc(), {.k = 2}), 0.5),
       "fastai's Larc with tp = 2: it needs norms of whole parameters, and this rank has parts. Use AdamW."},
      {"FastaiSgd", by_fastai(fastai::sgd({.mom = 0.9, .wd = 0.1}), 0.1)},
      {"FastaiRmsProp", by_fastai(fastai::rms_prop({.eps = 1e-2}))},
      {"FastaiAdam", by_fastai(fastai::adam({.eps = 1e-2}))},
      {"FastaiLookaheadOfAdam", by_fastai(fastai::lookahead(fastai::adam({.eps = 1e-2}), {.k = 2}))},
      {"FastaiRAdam", by_fastai(fastai::radam({.eps = 1e-2}))},
      {"FastaiQHAdam", by_fastai(fastai::qhadam({.eps = 1e-2}))},
      {"FastaiRanger", by_fastai(fastai::ranger({.eps = 1e-2, .lookahead = {.k = 2}}))},
      {"ApexAdam",
       [](const Groups& groups) {
         return std::make_shared<optim::ApexAdam>(groups, optim::ApexAdamOptions(1e-2).eps(1e-2));
       }},
      {"ApexSgd",
       [](const Groups& groups) {
         return std::make_shared<optim::ApexSgd>(groups, optim::ApexSgdOptions(0.1).momentum(0.9));
       }},
  };
}

std::shared_ptr<models::Gpt2Impl> net_of_parts() {
  torch::manual_seed(0);
  return std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make());
}

class StepsOfParts : public ::testing::TestWithParam<StepRule> {
 protected:
  static constexpr int kSteps = 3;
  using Weights = std::map<std::string, at::Tensor>;

  static Groups groups_of(const torch::nn::Module& net) {
    return {torch::optim::OptimizerParamGroup(net.parameters())};
  }
  Weights weights_of_one_process() const {
    const auto net = net_of_parts();
    const auto optimizer = GetParam().make(groups_of(*net));
    const auto batch = parallel_batch();
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      language_loss(net->forward(batch.x, {}, nullptr), batch.y).backward();
      optimizer->step();
    }
    return weights_of_net(*net);
  }
  void expect_weights_of_one_process(const parallel::ParallelOptions& layout) const {
    const Weights before = weights_of_net(*net_of_parts()), expected = weights_of_one_process();
    const auto batch = parallel_batch();
    const std::vector<std::shared_ptr<models::Gpt2Impl>> nets = {net_of_parts(), net_of_parts()};
    run_ranks(2, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = layout});
      const auto& net = nets[static_cast<size_t>(process.rank())];
      const auto made = GetParam().make(groups_of(*net));
      auto [model, optimizer] = accelerator.prepare(net, *made);
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        accelerator.forward_backward(Tokens(batch.x, batch.y), [&, &model = model](const Tokens& part) {
          return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
        });
        optimizer.step();
      }
      double moved = 0;
      for (const auto& item : net->named_parameters()) {
        const at::Tensor whole = parallel::gather_parameter(item.value());
        EXPECT_LT((whole - expected.at(item.key())).abs().max().item<double>(), 1e-5) << item.key();
        moved = std::max(moved, (whole - before.at(item.key())).abs().max().item<double>());
      }
      EXPECT_GT(moved, 1e-4);
    });
  }
  static Weights weights_of_net(const torch::nn::Module& net) {
    Weights weights;
    for (const auto& item : net.named_parameters()) weights[item.key()] = item.value().detach().clone();
    return weights;
  }
  /// Prepares the optimizer with the model, behind it, or before it.
  void expect_refused(const parallel::ParallelOptions& layout, const char* words) const {
    for (const char* const order : {"with", "behind", "before"}) {
      const std::vector<std::shared_ptr<models::Gpt2Impl>> nets = {net_of_parts(), net_of_parts()};
      const auto refusals = run_ranks_collecting(2, [&](process::Process& process) {
        const Accelerator accelerator(process, {.parallel = layout});
        const auto& net = nets[static_cast<size_t>(process.rank())];
        const auto made = GetParam().make(groups_of(*net));
        if (order == std::string("with")) {
          auto both = accelerator.prepare(net, *made);
        } else if (order == std::string("behind")) {
          auto model = accelerator.prepare(net);
          auto optimizer = accelerator.prepare(*made);
        } else {
          auto optimizer = accelerator.prepare(*made);
          auto model = accelerator.prepare(net);
        }
      });
      for (const std::string& refusal : refusals) EXPECT_THAT(refusal, HasSubstr(words)) << order;
    }
  }
  void expect_steps_or_refusal(const parallel::ParallelOptions& layout, const std::string& words) const {
    if (words.empty()) {
      expect_weights_of_one_process(layout);
    } else {
      expect_refused(layout, words.c_str());
    }
  }
};

TEST_P(StepsOfParts, WithCutParametersAreThoseOfOneProcessOrRefused) {
  expect_steps_or_refusal({.tp = 2}, GetParam().with_tp);
}

TEST_P(StepsOfParts, OnStagesAreThoseOfOneProcessOrRefused) {
  expect_steps_or_refusal({.pp = 2, .microbatches = 4}, GetParam().with_pp);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, StepsOfParts, ::testing::ValuesIn(step_rules()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hasten
