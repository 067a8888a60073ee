// Stands for the Gloo header of this name, which libtorch's packages leave out although ProcessGroupGloo.hpp
// includes it; nothing of it is needed.
#pragma once
