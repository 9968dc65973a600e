# One folder under src/ is one library, built by one line:
#
#   vamp_library(core DEPS base model LIBS nlohmann_json::nlohmann_json)
#
# Sources are the folder's *.cc. Files are sorted by their ending:
#   x.cc        part of the library vamp_<name>
#   x_test.cc   part of the test program vamp_<name>_test (GoogleTest; each test is a ctest test)
#   x_fuzz.cc   a libFuzzer program of its own, built only under -DVAMP_FUZZ=ON
# and likewise for *.cu in the cuda/ folders, which are built only under -DVAMP_CUDA=ON.
# DEPS are libraries of this project, LIBS anything else. FOLDERS are folders below this one that belong to it.
# UNITY: several files are compiled as one, where templates (Asio's, JSON's, CLI11's) cost more than our code.

add_library(vamp_options INTERFACE)
target_compile_features(vamp_options INTERFACE cxx_std_20)
target_compile_options(vamp_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Werror -fno-omit-frame-pointer>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -DFMT_USE_CONSTEXPR=1 -DFMT_CONSTEVAL= -Xcompiler=-Wall,-Wextra,-Werror --expt-relaxed-constexpr -lineinfo>)
target_include_directories(vamp_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(VAMP_SANITIZE)
  target_compile_options(vamp_options INTERFACE -fsanitize=${VAMP_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(vamp_options INTERFACE -fsanitize=${VAMP_SANITIZE})
  target_compile_definitions(vamp_options INTERFACE VAMP_SANITIZED=1)
  # libstdc++'s std::stable_sort uses what clang reports as deprecated.
  target_compile_options(vamp_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
endif()

if(VAMP_PRECOMPILE)
  # Half of a file's time goes into the same headers, and into the same templates of GoogleTest and
  # JSON made anew: here they are compiled once (clang does so for templates too). Other builds do
  # without, so that a file is known to include what it needs.
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "")
  add_library(vamp_precompiled STATIC ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(vamp_precompiled PRIVATE vamp_options Threads::Threads fmt::fmt spdlog::spdlog
    nlohmann_json::nlohmann_json GTest::gtest GTest::gmock)
  target_compile_options(vamp_precompiled PRIVATE -Xclang -fno-pch-timestamp)
  target_precompile_headers(vamp_precompiled PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp> <fmt/format.h>
    <algorithm> <functional> <map> <memory> <optional> <string> <unordered_map> <vector>)
endif()

# Takes the common headers from vamp_precompiled where there is one.
function(vamp_use_precompiled target)
  if(TARGET vamp_precompiled)
    target_precompile_headers(${target} REUSE_FROM vamp_precompiled)
  endif()
endfunction()

# Compiles several of the target's files as one.
function(vamp_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 9)
  # Only the first file of such a batch is what GCC takes for a source file rather than a header.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()

# Text files of the present folder, built in: vamp_embed(out_variable report/page_assets.h kPageJs=page/page.js ...).
# The header declares `extern const char* const kPageJs;` in namespace vamp. Give ${out_variable} to EXTRA.
function(vamp_embed out_variable header)
  get_filename_component(stem ${header} NAME_WE)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cc)
  foreach(pair ${ARGN})
    string(REPLACE "=" ";" parts ${pair})
    list(GET parts 0 name)
    list(GET parts 1 file)
    list(APPEND files ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    list(APPEND pairs ${name}=${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
  list(JOIN pairs "," pairs)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake)
  add_custom_command(OUTPUT ${out} COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DHEADER=${header} -DPAIRS=${pairs} -P ${script}
                     DEPENDS ${files} ${script})
  set(${out_variable} ${out} PARENT_SCOPE)
endfunction()

function(vamp_library name)
  cmake_parse_arguments(ARG "UNITY" "" "FOLDERS;DEPS;LIBS;TEST_LIBS;EXTRA" ${ARGN})
  set(patterns *.cc *.cu)
  foreach(folder ${ARG_FOLDERS})
    list(APPEND patterns ${folder}/*.cc)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.(cc|cu)$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.(cc|cu)$")
  list(APPEND sources ${ARG_EXTRA})

  list(TRANSFORM ARG_DEPS PREPEND vamp_)
  if(sources)
    add_library(vamp_${name} STATIC ${sources})
    target_link_libraries(vamp_${name} PUBLIC vamp_options ${ARG_DEPS} ${ARG_LIBS})
    vamp_use_precompiled(vamp_${name})
    if(ARG_UNITY)
      vamp_unity(vamp_${name})
    endif()
  else()
    add_library(vamp_${name} INTERFACE)
    target_link_libraries(vamp_${name} INTERFACE vamp_options ${ARG_DEPS} ${ARG_LIBS})
  endif()

  if(VAMP_FUZZ AND fuzzers)
    # What -fsanitize=fuzzer-no-link counts, which differs from the precompiled headers' flags; only
    # libraries that are fuzzed pay for it.
    target_compile_options(vamp_${name} PRIVATE
      -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)
    foreach(fuzzer ${fuzzers})
      get_filename_component(stem ${fuzzer} NAME_WE)
      add_executable(${stem} ${fuzzer})
      target_link_libraries(${stem} PRIVATE vamp_${name} GTest::gtest)
      target_compile_definitions(${stem} PRIVATE VAMP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
      vamp_use_precompiled(${stem})
    endforeach()
  endif()
  if(tests)
    vamp_test(vamp_${name}_test SOURCES ${tests} LIBS vamp_${name} ${ARG_TEST_LIBS})
  endif()
endfunction()

# A GoogleTest program, each of whose tests is a ctest test. VAMP_SOURCE_DIR is where the test finds
# the repository's own files (golden checkpoints, traces).
function(vamp_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE VAMP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # Tests are compiled more often than their own code runs.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  vamp_unity(${name})  # the templates of GoogleTest, JSON and the containers, once
  vamp_use_precompiled(${name})
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300)
endfunction()
