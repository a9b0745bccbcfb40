"""torch's compilers and their graphs: AOTAutograd's, Inductor's and Dynamo's entry points, fx."""
