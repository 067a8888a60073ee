// The convolutional network of the Fashion-MNIST examples: two convolutions, three linears.
#pragma once

#include <torch/torch.h>

namespace models {

/// For images [batch, 1, 28, 28]; ten scores.
inline torch::nn::Sequential fashion_cnn() {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3).padding(1)), nn::BatchNorm2d(32), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(32, 64, 3)), nn::BatchNorm2d(64), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Flatten(), nn::Linear(64 * 6 * 6, 600), nn::Dropout(0.25),
                        nn::Linear(600, 120), nn::Linear(120, 10));
}

}  // namespace models
