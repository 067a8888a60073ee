// hasten-self-test: what `hasten test` starts on every process. Claims of the library, each checked against what can be
// computed without it, on the machine and with the settings that a training will have. They are checked in float32.
// Training is checked in the configured precision, too, as far as its rounding allows.
//
// Every rank checks and says what is wrong, "" for nothing; rank 0 prints, and the exit code is 1 if any rank
// found something.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <string_view>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/process/random.h"
#include "measure.h"

namespace {

using hasten::Accelerator;
using torch::Tensor;

Tensor count_to(int64_t end) {
  return torch::arange(end, torch::kFloat);
}

std::string collectives(const Accelerator& accelerator) {
  const int64_t rank = accelerator.rank(), world = accelerator.world_size();
  const Tensor sum = accelerator.reduce(torch::full({3}, static_cast<double>(rank)));
  if (!sum.eq(static_cast<double>(world * (world - 1) / 2)).all().item<bool>())
    return hasten::text("the sum of all ranks is ", sum[0].item<float>());
  const Tensor all = accelerator.gather(torch::full({1}, static_cast<double>(rank)));
  if (!all.equal(count_to(world))) return "gather gave other ranks, or another order";
  const Tensor first = hasten::comm::broadcast(accelerator.group(), torch::full({1}, rank + 7.0));
  if (first.item<float>() != 7) return hasten::text("the broadcast of 7 gave ", first.item<float>());
  return "";
}

// A number of samples that no number of ranks times the batch divides.
std::string sharding(const Accelerator& accelerator) {
  const int64_t num_samples = 4 * accelerator.world_size() + 1;
  auto loader = accelerator.data_loader(hasten::data::TensorDataset(count_to(num_samples)), 2);
  std::vector<Tensor> seen;
  for (const auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch));
  const Tensor sorted = std::get<0>(torch::cat(seen).sort());
  if (sorted.cpu().equal(count_to(num_samples))) return "";
  return hasten::text(sorted.numel(), " samples came of ", num_samples, ", or not each of them once");
}

torch::nn::Sequential make_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
}

Tensor parameters_of(const torch::nn::Sequential& net) {
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

// What three steps may differ from those in float32.
double tolerance(hasten::Precision precision) {
  switch (precision) {
    case hasten::Precision::kNo:
      return 1e-5;
    case hasten::Precision::kFp16:
      return 5e-3;
    case hasten::Precision::kBf16:
      return 3e-2;
    case hasten::Precision::kFp8:
      return 1e-1;
  }
  return 1e-5;
}

// Steps on shares of a batch end where steps of one process on the whole batch end, and on all ranks alike.
std::string data_parallelism(const Accelerator& accelerator) {
  constexpr int kSteps = 3, kRows = 4;
  auto net = make_net(), alone = make_net();
  const Tensor data = torch::randn({kRows * accelerator.world_size(), 6}), target = data.sum(1, true);
  torch::optim::SGD sgd(net->parameters(), 0.1), sgd_alone(alone->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto share = torch::indexing::Slice(kRows * accelerator.rank(), kRows * (accelerator.rank() + 1));

  // A loss scale that is too large at first leaves steps out.
  for (int step = 0, tries = 0; step < kSteps && tries < 10 * kSteps; ++tries) {
    optimizer.zero_grad();
    accelerator.backward(torch::mse_loss(model(data.index({share}).to(accelerator.device())),
                                         target.index({share}).to(accelerator.device())));
    optimizer.step();
    if (!accelerator.optimizer_step_was_skipped()) ++step;
  }
  for (int step = 0; step < kSteps; ++step) {
    sgd_alone.zero_grad();
    torch::mse_loss(alone->forward(data), target).backward();
    sgd_alone.step();
  }

  const Tensor ours = parameters_of(net);
  const Tensor of_all = accelerator.gather(ours.unsqueeze(0));
  if (!of_all.eq(of_all[0]).all().item<bool>()) return "parameters differ between the ranks";
  const double distance = (ours.cpu() - parameters_of(alone)).abs().max().item<double>();
  const double allowed = tolerance(accelerator.mixed_precision());
  return distance < allowed ? ""
                            : hasten::text("parameters are ", distance,
                                           " from those of one process in float32; at most ", allowed, " is rounding");
}

std::string random_state(const Accelerator& accelerator) {
  const auto draw = [&](bool device_specific) {
    hasten::process::set_seed(accelerator.process(), 11, {.device_specific = device_specific});
    return accelerator.gather(torch::randn({1, 4}).to(accelerator.device())).cpu();
  };
  const Tensor alike = draw(false), apart = draw(true);
  torch::manual_seed(11);
  if (!alike.eq(torch::randn({1, 4})).all().item<bool>()) return "one seed gave the ranks different numbers";
  for (int rank = 0; rank < accelerator.world_size(); ++rank) {
    torch::manual_seed(static_cast<uint64_t>(11 + rank));
    if (!apart[rank].equal(torch::randn({4}))) return hasten::text("rank ", rank, " has not its own numbers");
  }
  return "";
}

struct Check {
  const char* name;
  const char* claim;
  std::string (*run)(const Accelerator&);
};

constexpr Check kChecks[] = {{"collectives", "sum, gather and broadcast give what they should", collectives},
                             {"sharding", "every sample comes once, from any rank", sharding},
                             {"data parallelism", "ranks train as one process does, and end alike", data_parallelism},
                             {"random numbers", "one seed for all, or one for each rank", random_state}};

// What the ranks found, "" if nothing.
std::string found(const Accelerator& accelerator, const Check& check) {
  std::string words;
  const auto all = hasten::comm::gather_object(accelerator.group(), check.run(accelerator));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) words += hasten::text("\n        rank ", rank, ": ", all[rank]);
  }
  return words;
}

// The process of the configured Accelerator, without its precision. FSDP's and DeepSpeed's settings bring one that no
// other may contradict.
Accelerator in_float32(const Accelerator& configured) {
  using hasten::DistributedType;
  const auto type = configured.distributed_type();
  const bool is_bound = type == DistributedType::kDeepSpeed || type == DistributedType::kFsdp;
  if (is_bound || configured.mixed_precision() == hasten::Precision::kNo) return configured;
  return Accelerator(configured.process(), {.mixed_precision = hasten::Precision::kNo});
}

int run() {
  const Accelerator configured;
  const Accelerator accelerator = in_float32(configured);
  accelerator.print("hasten test on ", accelerator.world_size(),
                    accelerator.world_size() == 1 ? " process, " : " processes, ", accelerator.device().str());
  int num_checks = 0, num_failed = 0;
  const auto look = [&](const Accelerator& with, const Check& check, const std::string& name) {
    const std::string words = found(with, check);
    ++num_checks;
    num_failed += words.empty() ? 0 : 1;
    with.print(words.empty() ? "ok      " : "FAILED  ", name, ": ", check.claim, words);
  };
  for (const Check& check : kChecks) look(accelerator, check, check.name);
  const auto precision = configured.mixed_precision();
  if (precision != accelerator.mixed_precision()) {
    look(configured, {"", "the same, as far as rounding allows", data_parallelism},
         hasten::text("data parallelism in ", hasten::precision::name_of(precision)));
  }
  accelerator.print(num_checks - num_failed, " of ", num_checks, " hold");
  return num_failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    // `hasten plan --measure` starts it as well.
    if (argc == 3 && std::string_view(argv[1]) == "--measure") return hasten::self_test::measure(argv[2]);
    return run();
  } catch (const hasten::UsageError& error) {  // settings that this version cannot serve
    std::cerr << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {  // a rank that died, a connection that does not work
    std::cerr << error.what() << '\n';
    return 1;
  }
}
