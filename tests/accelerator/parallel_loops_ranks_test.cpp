// Loops of model parallel runs: local SGD, batches of uneven number, norms over batches of all ranks. Each against the
// same loop of ranks with whole models, or one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::Each;
using ::testing::HasSubstr;
using LoopPair = std::pair<at::Tensor, at::Tensor>;
using LoopWeights = std::map<std::string, at::Tensor>;

std::vector<std::shared_ptr<models::Gpt2Impl>> loop_nets(int count) {
  std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(0);
    nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()));
  }
  return nets;
}

int place_of(const process::Process& process, const parallel::ParallelOptions& layout, int data) {
  return process.rank() / (layout.tp * layout.cp * layout.sp) % data;
}

LoopWeights whole_weights(const torch::nn::Module& net) {
  LoopWeights all;
  for (const auto& item : net.named_parameters()) {
    all[item.key()] = parallel::gather_parameter(item.value()).detach().clone();
  }
  return all;
}

void expect_loop_weights(const LoopWeights& found, const LoopWeights& wanted, double tolerance) {
  for (const auto& [name, value] : wanted) {
    ASSERT_EQ(found.at(name).sizes(), value.sizes()) << name;
    EXPECT_LT((found.at(name) - value).abs().max().item<double>(), tolerance) << name;
  }
}

using Loop = std::function<void(const process::Process&, const parallel::ParallelOptions&,
                                const std::shared_ptr<models::Gpt2Impl>&, LoopWeights&)>;

// Runs the loop on `data` ranks of whole models, then on as many models over several ranks.
void expect_loop_as_of_whole_models(const Loop& loop, int data, const std::vector<parallel::ParallelOptions>& layouts) {
  const auto whole = loop_nets(data);
  LoopWeights expected;
  run_ranks(data, [&](process::Process& process) {
    LoopWeights own;
    loop(process, {}, whole[static_cast<size_t>(process.rank())], own);
    if (process.rank() == 0) expected = own;
  });
  for (const auto& layout : layouts) {
    const int world = data * layout.tp * layout.cp * layout.sp * layout.pp;
    const auto nets = loop_nets(world);
    run_ranks(world, [&](process::Process& process) {
      LoopWeights own;
      loop(process, layout, nets[static_cast<size_t>(process.rank())], own);
      expect_loop_weights(own, expected, 1e-4);
    });
  }
}

// A batch of one row of a rank's place and step.
LoopPair row_of(int place, int step) {
  const auto batch = parallel_batch();
  const int64_t row = (2 * step + 3 * place) % 8;
  return {batch.x.narrow(0, row, 1), batch.y.narrow(0, row, 1)};
}

template <class Model>
void backward_of_row(const Accelerator& accelerator, const Model& model, const LoopPair& row) {
  const auto loss = [&](const LoopPair& part) {
    return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
  };
  if (accelerator.options().parallel.pp > 1) {
    accelerator.forward_backward(row, loss);
  } else {
    accelerator.backward(loss(row));
  }
}

const std::vector<parallel::ParallelOptions> kTwoModels = {{.dp_replicate = 2, .tp = 2},
                                                           {.dp_replicate = 2, .tp = 2, .sequence_parallel = true},
                                                           {.dp_replicate = 2, .cp = 2},
                                                           {.dp_replicate = 2, .sp = 2},
                                                           {.dp_replicate = 2, .pp = 2, .microbatches = 1},
                                                           {.dp_replicate = 2, .tp = 2, .pp = 2, .microbatches = 1}};

// ---- Local SGD.

TEST(ParallelLoops, AverageModelsThatAreDividedNowAndThen) {
  const auto loop = [](const process::Process& process, const parallel::ParallelOptions& layout,
                       const std::shared_ptr<models::Gpt2Impl>& net, LoopWeights& weights) {
    const Accelerator accelerator(process, {.parallel = layout});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto local = accelerator.local_sgd(model, {.num_steps = 2});
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      backward_of_row(accelerator, model, row_of(place_of(process, layout, 2), step));
      // Each model by its own norm.
      accelerator.clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      local.step();
    }
    local.finish();
    weights = whole_weights(*net);
  };
  expect_loop_as_of_whole_models(loop, 2, kTwoModels);
}

TEST(ParallelLoops, AverageModelsThatAreDividedInFloat16) {
  const auto loop = [](const process::Process& process, const parallel::ParallelOptions& layout,
                       const std::shared_ptr<models::Gpt2Impl>& net, LoopWeights& weights) {
    const Accelerator accelerator(process, {.mixed_precision = Precision::kFp16, .parallel = layout});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto local = accelerator.local_sgd(model, {.num_steps = 2});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      backward_of_row(accelerator, model, row_of(place_of(process, layout, 2), step));
      // An overflow of one part: its model alone skips the step.
      const bool overflows = step == 1 && process.rank() == process.world_size() - 1;
      if (overflows) {
        for (const auto& parameter : net->parameters()) {
          if (parameter.grad().defined()) parameter.mutable_grad().fill_(INFINITY);
        }
      }
      optimizer.step();
      const bool is_its_model = place_of(process, layout, 2) == 1;
      EXPECT_EQ(optimizer.step_was_skipped(), step == 1 && is_its_model) << process.rank() << ' ' << step;
      local.step();
    }
    local.finish();
    weights = whole_weights(*net);
    const auto scales = accelerator.group().all_gather(torch::tensor(accelerator.scaler_state()->scale));
    for (const auto& scale : scales) EXPECT_TRUE(scale.equal(scales.front()));
  };
  const auto whole = loop_nets(2);
  LoopWeights expected;
  run_ranks(2, [&](process::Process& process) {
    LoopWeights own;
    loop(process, {}, whole[static_cast<size_t>(process.rank())], own);
    if (process.rank() == 0) expected = own;
  });
  for (const parallel::ParallelOptions& layout :
       {parallel::ParallelOptions{.dp_replicate = 2, .tp = 2},
        parallel::ParallelOptions{.dp_replicate = 2, .pp = 2, .microbatches = 1}}) {
    const auto nets = loop_nets(4);
    run_ranks(4, [&](process::Process& process) {
      LoopWeights own;
      loop(process, layout, nets[static_cast<size_t>(process.rank())], own);
      expect_loop_weights(own, expected, 3e-3);
    });
  }
}

// ---- Batches of uneven number.

TEST(ParallelLoops, OfUnevenLengthAreLeftByWholeModels) {
  const auto loop = [](const process::Process& process, const parallel::ParallelOptions& layout,
                       const std::shared_ptr<models::Gpt2Impl>& net, LoopWeights& weights) {
    const Accelerator accelerator(process, {.parallel = layout});
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int place = place_of(process, layout, 2);
    accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
      for (int step = 0; step < (place == 0 ? 2 : 5); ++step) {
        optimizer.zero_grad();
        backward_of_row(accelerator, model, row_of(place, step));
        accelerator.clip_grad_norm_(net->parameters(), 0.5);
        optimizer.step();
        const at::Tensor seen = accelerator.gather(torch::tensor({step}));
        EXPECT_EQ(seen.numel(), step < 2 ? 2 : 1);
        EXPECT_EQ(accelerator.reduce(torch::tensor(2.0), {.op = comm::ReduceOp::kMean}).item<double>(), 2.0);
        accelerator.wait_for_everyone();
      }
    });
    weights = whole_weights(*net);
  };
  expect_loop_as_of_whole_models(loop, 2, kTwoModels);
}

TEST(ParallelLoops, OfUnevenLengthAccumulateBatches) {
  const auto loop = [](const process::Process& process, const parallel::ParallelOptions& layout,
                       const std::shared_ptr<models::Gpt2Impl>& net, LoopWeights& weights) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = 2, .parallel = layout});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int place = place_of(process, layout, 2);
    accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
      for (int step = 0; step < (place == 0 ? 6 : 4); ++step) {
        const auto scope = accelerator.accumulate(model);
        backward_of_row(accelerator, model, row_of(place, step));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    weights = whole_weights(*net);
  };
  expect_loop_as_of_whole_models(loop, 2, kTwoModels);
}

TEST(ParallelLoops, OfUnevenLengthAverageInLocalSgd) {
  const auto loop = [](const process::Process& process, const parallel::ParallelOptions& layout,
                       const std::shared_ptr<models::Gpt2Impl>& net, LoopWeights& weights) {
    const Accelerator accelerator(process, {.parallel = layout});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int place = place_of(process, layout, 2);
    accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
      auto local = accelerator.local_sgd(model, {.num_steps = 2});
      for (int step = 0; step < (place == 0 ? 2 : 5); ++step) {
        optimizer.zero_grad();
        backward_of_row(accelerator, model, row_of(place, step));
        optimizer.step();
        local.step();
      }
    });
    weights = whole_weights(*net);
  };
  expect_loop_as_of_whole_models(loop, 2, kTwoModels);
}

// Ranks of one model that part say so on all ranks, and nothing waits.
TEST(ParallelLoops, OfUnevenLengthRefuseAModelWhoseRanksPart) {
  const auto nets = loop_nets(4);
  const auto words = run_ranks_collecting(4, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.dp_replicate = 2, .tp = 2}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    accelerator.join_uneven_inputs(model, [&] {
      for (int step = 0; step < (process.rank() == 1 ? 1 : 2); ++step) {
        accelerator.gather(torch::tensor({step}));
      }
    });
  });
  EXPECT_THAT(words, Each(HasSubstr("the ranks of one model")));
}

// The other ranks of its model wait in an exchange of the next forward.
TEST(ParallelLoops, OfUnevenLengthEndOnAllRanksWithTheExceptionOfOne) {
  const auto nets = loop_nets(4);
  const auto words = run_ranks_collecting(4, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.dp_replicate = 2, .tp = 2}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    accelerator.join_uneven_inputs(model, [&] {
      for (int step = 0; step < 3; ++step) {
        if (process.rank() == 1 && step == 1) throw std::runtime_error("the words of one");
        const auto ids = torch::ones({2, 8}, at::kLong);
        accelerator.backward(language_loss(model(ids, at::Tensor(), nullptr), ids));
      }
    });
  });
  EXPECT_THAT(words, Each(HasSubstr("the words of one")));
}

TEST(ParallelLoops, OfUnevenLengthAreRefusedBesideSplitParameters) {
  const auto nets = loop_nets(4);
  const auto words = run_ranks_collecting(4, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.dp_shard = 2, .tp = 2}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    accelerator.join_uneven_inputs(model, [] {});
  });
  EXPECT_THAT(words, Each(HasSubstr("join_uneven_inputs with sharding and tp 2")));
  EXPECT_THAT(words, Each(HasSubstr("even_batches")));
}

// ---- Norms over the batches of all ranks.

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    register_module("up", up);
    register_module("down", down);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(norm(down(up(x).relu())).relu()); }
  torch::nn::Linear up{6, 16}, down{16, 8};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Linear head{8, 4};
};

std::shared_ptr<NormNetImpl> norm_net() {
  torch::manual_seed(2);
  return std::make_shared<NormNetImpl>();
}

const std::vector<std::pair<std::string, std::string>> kNormPlan = {{"up", "colwise"}, {"down", "rowwise"}};

struct NormRun {
  std::vector<double> losses = {};
  LoopWeights weights = {};
};

NormRun train_norm_net(const process::Process& process, const parallel::ParallelOptions& layout, int data,
                       const std::shared_ptr<NormNetImpl>& net) {
  const Accelerator accelerator(process, {.parallel = layout});
  parallel::convert_sync_batchnorm(*net, accelerator.process().group());
  torch::optim::SGD sgd(net->parameters(), 0.2);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const at::Tensor x = at::randn({12, 6}, generator, at::TensorOptions()), y = at::arange(12).remainder(4);
  const int64_t rows = 12 / data, first = rows * place_of(process, layout, data);
  const LoopPair mine(x.narrow(0, first, rows), y.narrow(0, first, rows));
  const auto loss_of = [&model = model](const LoopPair& part) {
    return torch::nn::functional::cross_entropy(model(part.first), part.second);
  };
  NormRun run;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    if (layout.pp > 1) {
      loss = accelerator.forward_backward(mine, loss_of);
    } else {
      loss = loss_of(mine);
      accelerator.backward(loss);
      loss = accelerator.reduce(loss.detach(), {.op = comm::ReduceOp::kMean});
    }
    optimizer.step();
    run.losses.push_back(parallel::whole_value(loss).item<double>());
  }
  run.weights = whole_weights(*net);
  for (const auto& item : net->named_buffers()) {
    const auto* const staged = parallel::stages_of(*net);
    run.weights[item.key()] = (staged ? staged->from_holder(item.value(), item.value()) : item.value()).clone();
  }
  return run;
}

TEST(ParallelLoops, NormaliseOverTheBatchesOfAllModels) {
  const auto alone = norm_net();
  NormRun expected;
  run_ranks(1, [&](process::Process& process) { expected = train_norm_net(process, {}, 1, alone); });
  struct Case {
    int world, data;
    parallel::ParallelOptions layout;
  };
  const std::vector<Case> cases = {
      {2, 1, {.tp = 2, .tensor_plan = kNormPlan}},
      {4, 2, {.dp_replicate = 2, .tp = 2, .tensor_plan = kNormPlan}},
      {2, 1, {.pp = 2, .stages = {"norm"}, .microbatches = 1}},
      {4, 2, {.dp_replicate = 2, .pp = 2, .stages = {"norm"}, .microbatches = 1}},
      {4, 2, {.dp_shard = 2, .tp = 2, .tensor_plan = kNormPlan}},
  };
  for (const auto& is : cases) {
    std::vector<std::shared_ptr<NormNetImpl>> nets;
    for (int rank = 0; rank < is.world; ++rank) nets.push_back(norm_net());
    run_ranks(is.world, [&](process::Process& process) {
      const auto own = train_norm_net(process, is.layout, is.data, nets[static_cast<size_t>(process.rank())]);
      for (size_t step = 0; step < own.losses.size(); ++step) {
        EXPECT_NEAR(own.losses[step], expected.losses[step], 1e-5) << is.world << ' ' << is.data << " step " << step;
      }
      expect_loop_weights(own.weights, expected.weights, 1e-4);
    });
  }
}

// Ranks of data(), or some of them, are another matter than those of one model.
TEST(ParallelLoops, RefuseNormsOverTheRanksOfOneModel) {
  const auto words = [](const parallel::ParallelOptions& layout, bool before, bool along_model) {
    std::vector<std::shared_ptr<NormNetImpl>> nets;
    for (int rank = 0; rank < 4; ++rank) nets.push_back(norm_net());
    return run_ranks_collecting(4, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = layout});
      const auto& net = nets[static_cast<size_t>(process.rank())];
      const bool in_a_row = (layout.tp > 1) == along_model;  // tp is innermost, pp outermost
      const auto group = *process.group().split(in_a_row ? process.rank() / 2 : process.rank() % 2);
      if (before) parallel::convert_sync_batchnorm(*net, group);
      auto model = accelerator.prepare(net);
      if (!before) parallel::convert_sync_batchnorm(*net, group);
    });
  };
  const parallel::ParallelOptions cut{.dp_replicate = 2, .tp = 2, .tensor_plan = kNormPlan};
  const parallel::ParallelOptions staged{.dp_replicate = 2, .pp = 2, .stages = {"norm"}};
  for (const auto& layout : {cut, staged}) {
    for (const bool before : {true, false}) {
      EXPECT_THAT(words(layout, before, true), Each(HasSubstr("has ranks that hold parts of one model"))) << before;
      EXPECT_THAT(words(layout, before, false), Each(::testing::IsEmpty())) << before;
    }
  }
}

}  // namespace
}  // namespace hasten
