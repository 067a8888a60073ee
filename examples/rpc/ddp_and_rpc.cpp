// Data parallelism and RPC in one backward pass: an embedding lives at a server, each trainer has a copy of a linear
// layer whose gradients are averaged over the trainers, and one optimizer steps both.
//
// hasten launch --roles master=1,ps=1,trainer=2 rpc ddp_and_rpc [STEPS]. After torch.distributed's tutorial on DDP and
// RPC.
#include <hasten/parallel/ddp/ddp.h>
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"

struct BagNet : torch::nn::Module {
  BagNet(int64_t num_tokens, int64_t width)
      : bag(register_module(
            "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(num_tokens, width).mode(torch::kSum)))) {}
  // [batch, tokens] of token numbers.
  torch::Tensor forward(const torch::Tensor& tokens) { return bag(tokens); }
  torch::nn::EmbeddingBag bag;
};

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "ddp_and_rpc [STEPS]");
  const int64_t steps = arguments.number(1, 200);
  torch::manual_seed(0);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  std::vector<int> trainers;
  for (int rank = 2; rank < process.world_size(); ++rank) trainers.push_back(rank);
  const auto group = process.group().subgroup(trainers);

  const auto train = [&](hasten::rpc::Agent& agent, const hasten::rpc::RemoteModule<BagNet>& bag) {
    torch::manual_seed(1);
    torch::nn::Linear fc(16, 8);
    const hasten::parallel::Ddp copies(*fc, *group);  // averages the gradients in the context, too
    auto parameters = bag.remote_parameters();
    for (const auto& one : fc->parameters()) parameters.push_back(agent.rref(one));
    const hasten::rpc::DistributedOptimizer<torch::optim::SGD> optimizer(agent, parameters,
                                                                         torch::optim::SGDOptions(0.5));
    // What is to be learnt, equal on all trainers: each token votes for the 8 classes.
    const auto votes = torch::randn({100, 8}, at::make_generator<at::CPUGeneratorImpl>(5));
    auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(process.rank()));
    double loss = 0;
    for (int64_t step = 0; step < steps; ++step) {
      agent.autograd([&](hasten::rpc::AutogradContext& context) {
        const auto tokens = torch::randint(100, {16, 5}, random, torch::kLong);
        const auto labels = votes.index({tokens}).sum(1).argmax(1);
        const auto error = torch::nn::functional::cross_entropy(fc(bag.forward(tokens)), labels);
        context.backward({error});
        optimizer.step(context);
        loss = error.item<double>();
      });
    }
    return std::pair{loss, fc->weight.detach().sum().item<double>()};
  };

  hasten::rpc::Agent* self = nullptr;
  std::promise<void> made;
  auto ready = made.get_future().share();
  hasten::rpc::Functions functions;
  hasten::rpc::add_module<BagNet, int64_t, int64_t>(functions);
  functions.add("train", [&](const hasten::rpc::RemoteModule<BagNet>& bag) {
    ready.wait();
    return train(*self, bag);
  });
  hasten::rpc::Agent agent(process, functions);
  self = &agent;
  made.set_value();
  if (process.is_main_process()) {
    const hasten::rpc::RemoteModule<BagNet> bag(agent, "rank:1/cpu", 100, 16);
    std::vector<hasten::rpc::Future<std::pair<double, double>>> all;
    for (const int trainer : trainers)
      all.push_back(agent.call_async<std::pair<double, double>>(trainer, "train", bag));
    const auto ends = hasten::rpc::wait_all(all);
    double difference = 0, loss = 0;
    for (const auto& [one, sum] : ends) {
      loss += one / static_cast<double>(ends.size());
      difference = std::max(difference, std::abs(sum - ends[0].second));
    }
    std::cout << "loss " << loss << " copies differ by " << difference << std::endl;
  }
  agent.shutdown();
  return 0;
}
