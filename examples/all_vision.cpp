// All programs of vision/ in one, for the tests: `all_vision NAME [ARGUMENT…]`. Compiled together they take as long as
// two of them do alone; `cmake --build … --target examples_vision` makes each by itself.
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <hasten/launch/run/launch.h>
#include <hasten/learner/callbacks.h>
#include <hasten/learner/distributed.h>
#include <hasten/learner/image_loaders.h>
#include <hasten/learner/learner.h>
#include <hasten/learner/metrics.h>
#include <hasten/learner/recorder.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <map>

#include "complete.h"
#include "data/cityscapes.h"
#include "data/picture_files.h"
#include "data/pictures.h"
#include "models/cnn.h"
#include "models/deeplab.h"
#include "models/resnet.h"
#include "support.h"

namespace complete_cv {
#include "vision/complete_cv.cpp"
}
namespace cv {
#include "vision/cv.cpp"
}
namespace deeplab {
#include "vision/deeplab.cpp"
}
namespace fashion_mnist_functions {
#include "vision/fashion_mnist_functions.cpp"
}
namespace pets {
#include "vision/pets.cpp"
}
namespace train_imagenette {
#include "vision/train_imagenette.cpp"
}

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(int, char**)>> programs = {
      {"complete_cv", complete_cv::main},
      {"cv", cv::main},
      {"deeplab", deeplab::main},
      {"fashion_mnist_functions", fashion_mnist_functions::main},
      {"pets", pets::main},
      {"train_imagenette", train_imagenette::main}};
  const auto program = argc < 2 ? programs.end() : programs.find(argv[1]);
  if (program == programs.end()) {
    std::cerr << "all_vision: name one of the programs of examples/vision\n";
    return 2;
  }
  return program->second(argc - 1, argv + 1);
}
