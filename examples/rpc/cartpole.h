// CartPole's equations (Barto, Sutton and Anderson, 1983), as Gymnasium's CartPole-v1 has them.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <random>

class CartPole {
 public:
  explicit CartPole(unsigned seed) : random_(seed) {}

  torch::Tensor reset() {
    std::uniform_real_distribution<float> near_zero(-0.05f, 0.05f);
    for (float& one : state_) one = near_zero(random_);
    num_steps_ = 0;
    return observation();
  }

  struct Step {
    torch::Tensor state;
    float reward;
    bool done;
  };
  Step step(int64_t action) {
    auto& [x, speed, angle, turn] = state_;
    const float force = action == 1 ? 10.0f : -10.0f, sine = std::sin(angle), cosine = std::cos(angle);
    const float push = (force + 0.05f * turn * turn * sine) / 1.1f;
    const float turning = (9.8f * sine - cosine * push) / (0.5f * (4.0f / 3 - 0.1f * cosine * cosine / 1.1f));
    const float pushing = push - 0.05f * turning * cosine / 1.1f;
    x += 0.02f * speed;
    speed += 0.02f * pushing;
    angle += 0.02f * turn;
    turn += 0.02f * turning;
    ++num_steps_;
    const bool done = std::abs(x) > 2.4f || std::abs(angle) > 0.2095f || num_steps_ >= 500;
    return {observation(), 1.0f, done};
  }

 private:
  torch::Tensor observation() const { return torch::tensor({state_[0], state_[1], state_[2], state_[3]}); }
  std::mt19937 random_;
  std::array<float, 4> state_{};
  int num_steps_ = 0;
};
