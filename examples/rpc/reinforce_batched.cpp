// As reinforce.cpp, but the agent chooses the actions of all observers in one forward: select_action returns a Future
// that is done when all observers have asked.
//
// hasten launch --roles agent=1,observer=2 rpc reinforce_batched [ROUNDS]. After torch.distributed's tutorial on batch
// RPC.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"
#include "cartpole.h"

struct BatchedPolicy : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return torch::softmax(second(torch::relu(first(x))), -1); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 128));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(128, 2));
};

class BatchedLearner {
 public:
  explicit BatchedLearner(int64_t num_observers) : num_observers_(num_observers) {}

  // No thread waits: the last observer's call runs the forward and answers all.
  hasten::rpc::Future<int64_t> select_action(int64_t observer, const torch::Tensor& state) {
    states_[observer] = state;
    const auto future = waiting_[observer].future();
    if (static_cast<int64_t>(waiting_.size()) == num_observers_) choose();
    return future;
  }

  double finish_round(const std::vector<std::vector<float>>& rewards) {
    std::vector<torch::Tensor> returns;
    double reward = 0;
    for (const auto& one : rewards) {
      std::vector<float> values(one.size());
      float sum = 0;
      // A reward of 0 marks an episode's end; the pole stands again after it.
      for (size_t i = one.size(); i-- > 0;) values[i] = sum = one[i] == 0 ? 0 : one[i] + 0.99f * sum;
      const auto ends = static_cast<double>(std::count(one.begin(), one.end(), 0.0f)) + 1;
      reward += static_cast<double>(one.size()) / ends / static_cast<double>(rewards.size());
      returns.push_back(torch::tensor(values));
    }
    auto values = torch::stack(returns, 1);
    values = (values - values.mean()) / (values.std() + 1e-7);
    optimizer_.zero_grad();
    (-(torch::stack(log_probabilities_) * values).sum()).backward();
    optimizer_.step();
    log_probabilities_.clear();
    return running_reward_ = 0.05 * reward + 0.95 * running_reward_;
  }

 private:
  void choose() {
    std::vector<torch::Tensor> states;
    for (const auto& [observer, state] : states_) states.push_back(state);
    const auto probabilities = policy_.forward(torch::stack(states));
    const auto actions = torch::multinomial(probabilities.detach(), 1);
    log_probabilities_.push_back(torch::log(probabilities.gather(1, actions)).squeeze(1));
    int64_t row = 0;
    for (const auto& [observer, promise] : std::exchange(waiting_, {})) promise.set(actions[row++].item<int64_t>());
    states_.clear();
  }

  const int64_t num_observers_;
  BatchedPolicy policy_;
  torch::optim::Adam optimizer_{policy_.parameters(), torch::optim::AdamOptions(1e-2)};
  std::map<int64_t, torch::Tensor> states_;
  std::map<int64_t, hasten::rpc::Promise<int64_t>> waiting_;
  std::vector<torch::Tensor> log_probabilities_;
  double running_reward_ = 10;
};

// All observers play the same number of steps, so that each forward has all of them.
std::vector<float> play_steps(const hasten::rpc::RRef<BatchedLearner>& learner, int64_t observer, int64_t num_steps,
                              int64_t seed) {
  CartPole game(static_cast<unsigned>(seed));
  auto state = game.reset();
  std::vector<float> rewards;
  for (int64_t i = 0; i < num_steps; ++i) {
    const auto [next, reward, done] = game.step(learner.sync<&BatchedLearner::select_action>(observer, state));
    rewards.push_back(done ? 0 : reward);
    state = done ? game.reset() : next;
  }
  return rewards;
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "reinforce_batched [ROUNDS]");
  const int64_t rounds = arguments.number(1, 500), num_steps = 200;
  torch::manual_seed(543);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  hasten::rpc::Functions functions;
  functions.add<&play_steps>();
  functions.add<&BatchedLearner::select_action>({.where = hasten::rpc::Where::kPerObject});
  hasten::rpc::Agent agent(process, functions);
  if (process.is_main_process()) {
    const int64_t num_observers = process.world_size() - 1;
    const auto learner = agent.rref(std::make_shared<BatchedLearner>(num_observers));
    double running_reward = 0;
    int64_t round = 0;
    for (; round < rounds && running_reward < 195; ++round) {
      std::vector<hasten::rpc::Future<std::vector<float>>> games;
      for (int rank = 1; rank < process.world_size(); ++rank)
        games.push_back(agent.async<&play_steps>(rank, learner, rank, num_steps, 1000 * round + rank));
      running_reward = learner.local_value().finish_round(hasten::rpc::wait_all(games));
      if (round % 20 == 0) std::cout << "round " << round << " running reward " << running_reward << std::endl;
    }
    std::cout << "ended after " << round << " rounds of " << num_observers * num_steps << " steps, running reward "
              << running_reward << std::endl;
  }
  agent.shutdown();
  return 0;
}
