// REINFORCE with one agent and several observers: observers play, the agent chooses their actions and learns.
//
// hasten launch --roles agent=1,observer=2 rpc reinforce [ROUNDS [SEED]]. After torch.distributed's tutorial on RPC.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"
#include "cartpole.h"

struct Policy : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::softmax(second(torch::relu(torch::dropout(first(x), 0.6, is_training()))), -1);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 128));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(128, 2));
};

// Lives at the agent. Its calls come one by one (kPerObject), so it needs no lock.
class Learner {
 public:
  int64_t select_action(const std::string& observer, const torch::Tensor& state) {
    const auto probabilities = policy_.forward(state.unsqueeze(0)).squeeze(0);
    const int64_t action = torch::multinomial(probabilities.detach(), 1).item<int64_t>();
    log_probabilities_[observer].push_back(torch::log(probabilities[action]));
    return action;
  }
  void report_reward(const std::string& observer, float reward) { rewards_[observer].push_back(reward); }

  // Updates the policy from the episodes of all observers; returns the running reward.
  double finish_round() {
    std::vector<torch::Tensor> losses;
    double reward = 0;
    for (const auto& [observer, rewards] : rewards_) {
      std::vector<float> returns(rewards.size());
      float sum = 0;
      for (size_t i = rewards.size(); i-- > 0;) returns[i] = sum = rewards[i] + 0.99f * sum;
      reward += static_cast<double>(rewards.size()) / static_cast<double>(rewards_.size());
      auto values = torch::tensor(returns);
      if (returns.size() > 1) values = (values - values.mean()) / (values.std() + 1e-7);
      losses.push_back(-(torch::stack(log_probabilities_[observer]) * values).sum());
    }
    optimizer_.zero_grad();
    torch::stack(losses).sum().backward();
    optimizer_.step();
    log_probabilities_.clear();
    rewards_.clear();
    return running_reward_ = 0.05 * reward + 0.95 * running_reward_;
  }

 private:
  Policy policy_;
  torch::optim::Adam optimizer_{policy_.parameters(), torch::optim::AdamOptions(1e-2)};
  std::map<std::string, std::vector<torch::Tensor>> log_probabilities_;
  std::map<std::string, std::vector<float>> rewards_;
  double running_reward_ = 10;
};

// Runs at an observer: one episode, in which the agent chooses every action.
int64_t play(const hasten::rpc::RRef<Learner>& learner, const std::string& name, int64_t seed) {
  CartPole game(static_cast<unsigned>(seed));
  auto state = game.reset();
  for (int64_t steps = 1;; ++steps) {
    const int64_t action = learner.sync<&Learner::select_action>(name, state);
    const auto [next, reward, done] = game.step(action);
    learner.sync<&Learner::report_reward>(name, reward);
    if (done) return steps;
    state = next;
  }
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "reinforce [ROUNDS [SEED]]");
  const int64_t rounds = arguments.number(1, 1000), seed = arguments.number(2, 543, 0);
  torch::manual_seed(static_cast<uint64_t>(seed));
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  hasten::rpc::Functions functions;
  functions.add<&play>();
  functions.add<&Learner::select_action>({.where = hasten::rpc::Where::kPerObject});
  functions.add<&Learner::report_reward>({.where = hasten::rpc::Where::kPerObject});
  hasten::rpc::Agent agent(process, functions);
  if (process.is_main_process()) {
    const auto learner = agent.rref(std::make_shared<Learner>());
    double running_reward = 0;
    int64_t episodes = 0, round = 0;
    for (; round < rounds && running_reward < 195; ++round) {
      std::vector<hasten::rpc::Future<int64_t>> games;
      for (int rank = 1; rank < process.world_size(); ++rank)
        games.push_back(agent.async<&play>(rank, learner, agent.worker(rank).name, seed + 1000 * round + rank));
      hasten::rpc::wait_all(games);
      episodes += static_cast<int64_t>(games.size());
      running_reward = learner.local_value().finish_round();
      if (round % 50 == 0) std::cout << "round " << round << " running reward " << running_reward << std::endl;
    }
    std::cout << "ended after " << round << " rounds, " << episodes << " episodes, running reward " << running_reward
              << std::endl;
  }
  agent.shutdown();
  return 0;
}
