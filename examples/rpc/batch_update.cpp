// Batched updates: the server averages the gradients of all trainers into one step, and answers them with the new
// parameters.
//
// hasten launch --roles ps=1,trainer=3 rpc batch_update. After torch.distributed's tutorial on batch processing.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"

class BatchUpdateServer {
 public:
  explicit BatchUpdateServer(int64_t num_trainers) : num_trainers_(num_trainers) {}
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all;
    for (const auto& one : model_->parameters()) all.push_back(one.detach().clone());
    return all;
  }
  // The reply comes when all trainers have sent theirs. No thread waits for it.
  hasten::rpc::Future<std::vector<torch::Tensor>> update(const std::vector<torch::Tensor>& gradients) {
    auto parameters = model_->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto part = gradients[i] / num_trainers_;
      auto& sum = parameters[i].mutable_grad();
      sum = sum.defined() ? sum + part : part;
    }
    waiting_.emplace_back();
    const auto future = waiting_.back().future();
    if (static_cast<int64_t>(waiting_.size()) == num_trainers_) {
      optimizer_.step();
      optimizer_.zero_grad();
      for (const auto& one : std::exchange(waiting_, {})) one.set(values());
    }
    return future;
  }

 private:
  const int64_t num_trainers_;
  torch::nn::Linear model_{8, 1};
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(0.1)};
  std::vector<hasten::rpc::Promise<std::vector<torch::Tensor>>> waiting_;
};

double train(const hasten::rpc::RRef<BatchUpdateServer>& server, int64_t seed, int64_t steps) {
  torch::nn::Linear model(8, 1);
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  const auto load = [&](const std::vector<torch::Tensor>& values) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i) model->parameters()[i].copy_(values[i]);
  };
  load(server.sync<&BatchUpdateServer::values>());
  double loss = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto x = torch::randn({16, 8}, random);
    const auto error = (model(x) - x.sum(1, true)).pow(2).mean();
    model->zero_grad();
    error.backward();
    std::vector<torch::Tensor> gradients;
    for (const auto& one : model->parameters()) gradients.push_back(one.grad());
    load(server.sync<&BatchUpdateServer::update>(gradients));
    loss = error.item<double>();
  }
  return loss;
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "batch_update [STEPS]");
  const int64_t steps = arguments.number(1, 60);
  torch::manual_seed(0);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  hasten::rpc::Functions functions;
  functions.add<&train>().add<&BatchUpdateServer::values>({.where = hasten::rpc::Where::kPerObject});
  functions.add<&BatchUpdateServer::update>({.where = hasten::rpc::Where::kPerObject});
  hasten::rpc::Agent agent(process, functions);
  if (process.is_main_process()) {
    const auto server = agent.rref(std::make_shared<BatchUpdateServer>(process.world_size() - 1));
    std::vector<hasten::rpc::Future<double>> losses;
    for (int rank = 1; rank < process.world_size(); ++rank)
      losses.push_back(agent.async<&train>(rank, server, rank, steps));
    double worst = 0;
    for (const double loss : hasten::rpc::wait_all(losses)) worst = std::max(worst, loss);
    std::cout << "worst loss " << worst << " after " << steps << " steps" << std::endl;
  }
  agent.shutdown();
  return 0;
}
