# cmake -DOUT=x_assets.cc -DHEADER=x_assets.h -DPAIRS=kName=file,... -P embed_text.cmake: text files as
# C++ string literals.
set(code "#include \"${HEADER}\"\n\nnamespace vamp {\n")
string(REPLACE "," ";" pairs "${PAIRS}")
foreach(pair ${pairs})
  string(REPLACE "=" ";" parts ${pair})
  list(GET parts 0 name)
  list(GET parts 1 file)
  file(READ ${file} text)
  string(APPEND code "const char* const ${name} = R\"~~~(${text})~~~\";\n")
endforeach()
file(WRITE ${OUT} "${code}}  // namespace vamp\n")
