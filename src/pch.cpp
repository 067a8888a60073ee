// The one file that builds the precompiled header; see cmake/HastenRoom.cmake.
