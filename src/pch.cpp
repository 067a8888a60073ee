// Empty on purpose: it carries the precompiled header, and stands for the sources of a room that has none;
// see cmake/HastenRoom.cmake.
